"""Functions travel to the ranks, tracebacks travel back.

A function from a notebook cell is sent by value. cloudpickle replaces its file name by '<dynamic-code>'; here the
code object keeps it, so that a rank's traceback names the cell and the launcher, which has the cell's text, can show
the line.
"""

from __future__ import annotations

import functools
import importlib
import io
import linecache
import marshal
import os
import sys
import sysconfig
import traceback
import types
from typing import Any

import cloudpickle

from dpviz.questions.base import WrongValue

Frame = tuple[str, int, str]  # file, line, function

_LIBRARIES = tuple(os.path.normpath(sysconfig.get_paths()[name]) + os.sep for name in ("stdlib", "purelib", "platlib"))
DPVIZ = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RANKS = os.path.dirname(os.path.abspath(__file__)) + os.sep


class _Pickler(cloudpickle.Pickler):
    dispatch_table = {
        **cloudpickle.Pickler.dispatch_table,
        types.CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
    }


def dumps(thing: Any) -> bytes:
    with io.BytesIO() as file:
        _Pickler(file).dump(thing)
        return file.getvalue()


loads = cloudpickle.loads


def pack(experiment: Any, config: Any) -> bytes:
    """Return experiment and config as bytes. Raises ValueError where something in them cannot travel."""
    try:
        return dumps((experiment, config))
    except Exception as error:  # pickling runs __reduce__ of anything: it may raise anything
        raise WrongValue(
            f"{name_of(experiment)} cannot be sent to the ranks, because it uses something that belongs to this "
            f"process: {error}. "
            "Make such things (files, locks, process groups, models on a device) inside the function."
        ) from error


def words(error: BaseException) -> str:
    """Return what an exception says; its __str__ is the user's, and may fail too."""
    try:
        return str(error)
    except Exception as another:
        return f"(its message cannot be told: {type(another).__name__})"


def resolve(experiment: Any) -> Any:
    """Return the function; a string 'package.module:function' is imported (so that a launcher need not import it
    itself).
    """
    if not isinstance(experiment, str):
        return experiment
    module, _, name = experiment.partition(":")
    return getattr(importlib.import_module(module), name)


def name_of(experiment: Any) -> str:
    return (
        experiment.partition(":")[2]
        if isinstance(experiment, str)
        else getattr(experiment, "__name__", type(experiment).__name__)
    )


@functools.cache  # asked of every imported module at every launch
def is_users(file: str) -> bool:
    """Whether a frame of this file is the user's (a cell, a script, an experiment), not a library's or the
    launcher's.
    """
    path = os.path.normpath(file)
    if path.startswith(_RANKS) or file.startswith(("<frozen", "<string>")):  # <string>: what starts a rank
        return False
    if path.startswith(DPVIZ):
        return True
    return not path.startswith(_LIBRARIES) and not {"site-packages", "dist-packages"} & set(path.split(os.sep))


def frames_of(error: BaseException) -> list[Frame]:
    """Return the frames of a traceback, outermost first, without those of dpviz.ranks."""
    frames = [(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    return [frame for frame in frames if not os.path.normpath(frame[0]).startswith(_RANKS)]


def users_place(frames: list[Frame]) -> str:
    """Return the place of the innermost frame that is the user's, "" where there is none."""
    return next((place(frame) for frame in reversed(frames) if is_users(frame[0])), "")


def cell_of(file: str) -> str:
    """Return 'Cell In[3]' where `file` is a notebook cell of this kernel, else the file's base name."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    number = getattr(getattr(shell, "compile", None), "_filename_map", {}).get(file)
    return os.path.basename(file) if number is None else f"Cell In[{number}]"


def place(frame: Frame) -> str:
    """Return 'Cell In[3], line 7, in train: dist.all_reduce(g)'."""
    file, line, function = frame
    text = linecache.getline(file, line).strip()
    return f"{cell_of(file)}, line {line}, in {function}" + (f": {text}" if text else "")


def traceback_text(kind: str, message: str, frames: list[Frame]) -> str:
    """Return a rank's traceback as Python prints it, cells named as the notebook numbers them."""
    lines = ["Traceback (most recent call last):"]
    for file, line, function in frames:
        lines.append(f"  {cell_of(file)}, line {line}, in {function}")
        text = linecache.getline(file, line).strip()
        lines += [f"    {text}"] * bool(text)
    return "\n".join([*lines, f"{kind}: {message}"])


def edited(known: dict[str, float]) -> bool:
    """Whether a module of the user's that this process has imported changed on disk since the last call; `known` is
    brought up to date.

    A warm rank keeps what it has imported, so it must be replaced then.
    """
    changed = False
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not is_users(file):
            continue
        try:
            time = os.stat(file).st_mtime
        except OSError:
            continue
        changed |= known.get(file, time) != time
        known[file] = time
    return changed


def directory() -> str:
    """Return the current directory, where the ranks go too. Raises ValueError where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise WrongValue("the current directory has been removed. Change to one that exists.") from None


def source_times() -> dict[str, float]:
    """Return the modification time of each source file of dpviz."""
    return {
        os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mtime
        for folder, _, names in os.walk(DPVIZ)
        for name in names
        if name.endswith(".py")
    }
