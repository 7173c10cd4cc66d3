"""python -m dpviz start: a working copy of the lessons, opened in JupyterLab.

The copy has no outputs, so that no stored answer gives a prediction away, and it belongs to the learner: what they have
saved is never overwritten. A manifest in the copy holds the hash of every file as it was given. A lesson that changed
in the meantime replaces the copy where the learner has not touched it, and otherwise comes beside it as NAME.new.ipynb.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MANIFEST = ".dpviz.json"
LEFT_OUT = {".py", ".pyc"}  # tools of the repository, of no use to a learner


def main(arguments=None):
    """Parse the command line, make the copy, and become JupyterLab.

    Returns an exit status where it does not come to that.
    """
    parser = argparse.ArgumentParser(
        prog="python -m dpviz start",
        description="Make a working copy of the lessons (yours: it is never overwritten) and open it in JupyterLab.",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    parser.add_argument(
        "--port", type=_port, default=8888, metavar="N", help="from 1 to 65535 (8888; the next free one)"
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="the working copy (work/ in the checkout)")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("jupyterlab") is None:
        return _say(
            "JupyterLab is not installed here. In the checkout, say: python -m pip install -e '.[lab]'", status=1
        )
    try:
        source = find_lessons()
        folder = (options.folder or default_folder(source)).expanduser().resolve()
        for line in copy_lessons(source, folder):
            print(line)
    except RuntimeError:  # of expanduser: there is no such user
        return _say(f"the folder {str(options.folder)!r} names a user who does not exist. Give another.", status=2)
    except ValueError as error:
        return _say(str(error), status=2)
    show = not options.no_browser and has_display()
    first = first_lesson(source)
    print(f"The lessons are in {folder}: what you save there stays.")
    if not show:
        print("Open the address that JupyterLab prints below; it begins with http://127.0.0.1:", flush=True)
    return _become(command(folder, first=first, port=options.port, browser=show))


def find_lessons():
    """The folder of the lessons: the checkout that this package runs from, else ./lessons.

    ValueError where there is none.
    """
    beside_package, here = Path(__file__).resolve().parents[1] / "lessons", Path.cwd() / "lessons"
    for folder in (beside_package, here):
        if any(folder.glob("*.ipynb")):
            return folder
    raise ValueError(
        f"No lessons were found in {beside_package} or {here}. They come with the repository and not with the "
        "installed package: change into a checkout of it, and start again."
    )


def default_folder(source):
    """work/ beside the lessons, or ~/dpviz-work where this user may not write there."""
    beside = source.parent / "work"
    writable = os.access(beside if beside.exists() else source.parent, os.W_OK)
    return beside if writable else Path.home() / "dpviz-work"


def copy_lessons(source, folder):
    """Bring `folder` up to date with the lessons in `source`; returns a line for each file that did not simply stay.

    ValueError where `folder` cannot be written, or lies within the lessons themselves.
    """
    source, folder = source.resolve(), folder.resolve()
    if folder == source or source in folder.parents:
        raise ValueError(f"{folder} holds the lessons themselves. Name another folder for your working copy.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        given = _read_manifest(folder)
        lines = []
        for path, name in _given_out(source):
            content = cleared(path.read_bytes()) if path.suffix == ".ipynb" else path.read_bytes()
            lines += _give(folder, name, content.replace(b"](../../lessons/", b"](../"), given)
        _write(folder / MANIFEST, (json.dumps(given, indent=1, sort_keys=True) + "\n").encode())
    except OSError as error:
        raise ValueError(
            f"{folder} cannot hold the working copy ({error.strerror}). Name a folder that you can write: "
            "python -m dpviz start ~/dpviz-work"
        ) from error
    return lines


def _given_out(source):
    """Yield (path, name in the copy) of every file that a learner gets: the lessons', and the labs as released."""
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source)
        if path.is_file() and path.suffix not in LEFT_OUT and not any(part.startswith(".") for part in name.parts):
            yield path, name
    for path in sorted((source.parent / "labs" / "release").glob("*.ipynb")):
        yield path, Path("labs") / path.name


def cleared(notebook):
    """The bytes of a notebook without outputs, execution counts and saved widget state."""
    content = json.loads(notebook)
    content.get("metadata", {}).pop("widgets", None)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
            cell.get("metadata", {}).pop("execution", None)
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def first_lesson(source):
    """The name of the notebook that a learner sees first."""
    return min(path.name for path in source.glob("*.ipynb"))


def has_display():
    """Whether a browser opened here could be seen."""
    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def command(folder, *, first, port, browser):
    """The command that starts JupyterLab on this machine alone (127.0.0.1), at the lesson `first`."""
    words = [sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    words += [f"--ServerApp.root_dir={folder}", f"--LabApp.default_url=/lab/tree/{first}"]
    # JupyterLab would otherwise ask the network for news and newer versions; a lesson works without one.
    words += ["--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.news_url=None"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")
    return words if browser else [*words, "--no-browser"]


def _give(folder, name, content, given):
    """Write one file where that takes nothing from the learner; the manifest `given` learns of it."""
    path, new = folder / name, _hash(content)
    before, given[name.as_posix()] = given.get(name.as_posix()), new
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, content)
        return []
    now = _hash(path.read_bytes())
    if new in (now, before):
        return []  # nothing is new, whatever the learner did
    if now == before:
        _write(path, content)
        return [f"{name}: a new version, taken (you had not changed yours)"]
    beside = _free_name(path)
    _write(beside, content)
    return [f"{name}: yours is kept; the new version is beside it as {beside.name}"]


def _free_name(path):
    count = 1
    while (beside := path.with_name(f"{path.stem}.new{count if count > 1 else ''}{path.suffix}")).exists():
        count += 1
    return beside


def _read_manifest(folder):
    try:
        given = json.loads((folder / MANIFEST).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}  # then every file that is there counts as the learner's
    return given if isinstance(given, dict) else {}


def _write(path, content):
    """Replace `path` at once, so that an interrupted start leaves no half-written lesson."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".dpviz-", delete=False) as file:
        file.write(content)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


def _hash(content):
    return hashlib.sha256(content).hexdigest()


def _port(text):
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"the port is {text!r}, but must be a whole number from 1 to 65535")
    return int(text)


def _say(sentence, *, status):
    print(sentence, file=sys.stderr)
    return status


def _become(words):
    if sys.platform == "win32":  # there exec leaves the terminal before the new program ends
        return subprocess.call(words)
    sys.stdout.flush()
    os.execv(words[0], words)
