"""Grade a folder of submissions: the students' exercise cells alone are taken, into the teacher's copy, and its checks
decide.

A submission is a notebook in the folder, or in a folder of the student's own in it. It may be broken, empty, renamed,
endless; may kill its kernel or print without end; may have its checks edited: each still gets its row, and so do the
others. What was graded is kept beside the submissions, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nbformat

from dpviz.labs import marking, source

KEPT = ".dpviz-grades.jsonl"
LARGEST_BYTES = 50_000_000  # of a submitted file
UNTRUSTED = "Submissions run on this machine, as you. Work that you do not trust belongs in a container: grade in one."
LATE = ("it was not reached in time", "took too long", "stopped after")  # what another limit may change
MARKERS = re.compile(r"^[ \t]*#[# \t]*(?:NBVAL_\w+|PYTEST_VALIDATE_\w+)[ \t]*$", re.MULTILINE)
EXPECT_ANEW = """\
import importlib, sys

sys.modules.pop("dpviz.labs.expect", None)
expect = importlib.import_module("dpviz.labs.expect")
"""


class Refused(ValueError):
    """What was handed in holds no submission: why."""


@dataclass(frozen=True, kw_only=True)
class Grade:
    """One exercise of one student: `points` of `of`, and why not all of them."""

    student: str
    lab: str
    exercise: int
    points: int
    of: int
    why: str = ""


def grade(folder: Path, *, limit_s: float = 60.0, only: str = "", again: bool = False, say=print) -> list[Grade]:
    """Grade every submission in `folder` and return all grades; `say` is called with a line after each.

    limit_s   seconds for one submission
    only      the lab that they all are, such as "lab01"; else each is recognised by the ids of its cells
    again     grade anew what is kept from before

    Raises ValueError where the folder does not exist or holds no notebook.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder. Give the one that holds the submissions.")
    submissions = sorted(path for path in folder.rglob("*.ipynb") if not _hidden(path.relative_to(folder)))
    if not submissions:
        raise ValueError(f"{folder} holds no notebook. Submissions are .ipynb files in it, or in a folder each.")
    labs = {path.stem: source.read(path) for path in source.paths()}
    if only and only not in labs:
        raise ValueError(f"there is no lab named {only!r}. The labs are: {', '.join(labs)}.")
    kept = {} if again else _kept(folder / KEPT)
    say(UNTRUSTED)
    found: list[tuple[str, list[Grade]]] = []
    with _opened(folder / KEPT, "w" if again else "a") as file:
        file.write("\n" * bool(file.tell()))  # after a line that a killed run did not end
        for number, path in enumerate(submissions, start=1):
            name, student, began = _name(path, folder), _student(path, folder), time.monotonic()
            key, before = "", None
            try:
                data = _data(path)
                key = _key(path, data, labs, only)
                before = kept.get(key) or kept.get(f"{key} {limit_s:g}")
                grades = before or list(_graded(path, data, student, labs, limit_s, only))
            except Exception as error:  # whatever was handed in, the others are graded
                grades = [_nothing(student, labs.get(only), error)]
            if not before and all(one.exercise for one in grades):
                key = f"{key} {limit_s:g}" if any(one.why.startswith(LATE) for one in grades) else key
                file.write(json.dumps({"key": key, "grades": [asdict(one) for one in grades]}) + "\n")
                file.flush()
            found.append((name, grades))
            got, of = sum(one.points for one in grades), sum(one.of for one in grades)
            how = "kept from before" if before else f"{time.monotonic() - began:.0f} s"
            say(f"{number}/{len(submissions)} {name}: {got} of {of} points ({how})")
    return _told_apart(found)


def write(grades: list[Grade], path: Path) -> None:
    """Write the grades as a table of comma-separated values, a line an exercise."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, list(Grade.__dataclass_fields__))
        rows.writeheader()
        rows.writerows(asdict(one) for one in grades)


def merged(lab: source.Lab, notebook):
    """Return the teacher's notebook with the exercise cells of the student's, and {exercise: why it has none}.

    A check gets its `expect` anew, as an exercise may have changed it, by accident or not.
    """
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    by_id = {cell.get("id", ""): cell for cell in code}
    by_tag = {source.exercise(cell): cell for cell in reversed(code) if source.is_exercise(cell)}  # the first stays
    others = {cell.get("id", ""): cell.cell_type for cell in notebook.cells if cell.cell_type != "code"}
    teachers, missing = lab.notebook(), {}
    for cell in teachers.cells:
        if source.is_check(cell):
            cell.source = EXPECT_ANEW + cell.source
        if not source.is_exercise(cell):
            continue
        number = source.exercise(cell)
        found = by_id.get(cell.id) or by_tag.get(number)
        if found is None:
            kind = others.get(cell.id)
            missing[number] = f"the cell is {kind}, not code" if kind else "the cell is missing"
            cell.source = _gone(number)
        else:
            cell.source = MARKERS.sub("#", found.source)  # nbval would skip it, or take its error for due
    return teachers, missing


def _graded(path: Path, data: bytes, student: str, labs: dict, limit_s: float, only: str) -> Iterator[Grade]:
    notebook, name = _read(path, data, labs, only)
    lab = labs[name]
    teachers, failed = merged(lab, notebook)
    passed: dict[str, marking.Outcome] = {}
    began, stops, share = time.monotonic(), 0, limit_s / marking.CELL_SHARE
    while rest := _undecided(teachers, failed, passed):
        left = limit_s + min(stops * share, limit_s) - (time.monotonic() - began)
        if left <= 1:
            break
        marked = marking.run(rest, limit_s=left, cell_s=share)
        passed |= marked.outcomes
        culprit = next((source.exercise(cell) for cell in teachers.cells if cell.id == marked.stopped), None)
        if culprit is None or culprit in failed:
            break
        failed[culprit] = marked.why  # once more without it: the others' points are not lost
        stops += 1
        for cell in teachers.cells:
            if source.is_exercise(cell) and source.exercise(cell) == culprit:
                cell.source = _gone(culprit)
    for number, of in lab.points().items():
        checks = [cell for cell in teachers.cells if source.is_check(cell) and source.exercise(cell) == number]
        got = sum(source.points(cell) for cell in checks if cell.id in passed and passed[cell.id].passed)
        why = failed.get(number) or _why(number, checks, passed, teachers)
        yield Grade(student=student, lab=name, exercise=number, points=0 if number in failed else got, of=of, why=why)


def _undecided(teachers, failed: dict[int, str], outcomes: dict[str, marking.Outcome]):
    """Return the notebook without the checks whose outcome is known, None where all are. An exercise's checks stay
    together, since one may use the names of another.
    """
    checks = [cell for cell in teachers.cells if source.is_check(cell)]
    left = {source.exercise(cell) for cell in checks if cell.id not in outcomes} - failed.keys()
    cells = [cell for cell in teachers.cells if not source.is_check(cell) or source.exercise(cell) in left]
    return nbformat.v4.new_notebook(cells=cells, metadata=teachers.metadata) if left else None


def _data(path: Path) -> bytes:
    """Return what the file holds. Raises Refused with why it is none that is read."""
    try:
        if path.is_dir():
            raise Refused("it is a folder, not a notebook")
        if not path.is_file():  # reading a pipe would never end
            raise Refused("there is no file behind its name")
        if (size := path.stat().st_size) > LARGEST_BYTES:
            raise Refused(f"the file has {size / 1e6:.0f} MB, and at most {LARGEST_BYTES / 1e6:.0f} MB are read")
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"the file cannot be read ({error.strerror})") from None


def _read(path: Path, data: bytes, labs: dict, only: str):
    """Return the notebook and the name of its lab. Raises Refused with why there is none."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of nbformat's, about cells without ids
            notebook = nbformat.reads(data.decode(), as_version=4)
        notebook.cells = [_whole(cell) for cell in notebook.cells]
        ids = {cell.id for cell in notebook.cells}
    except Exception as error:  # of a parser, given anything at all
        raise Refused(f"it cannot be read as a notebook ({type(error).__name__})") from None
    found = [name for name, lab in labs.items() if {cell.id for cell in lab.cells if source.is_exercise(cell)} & ids]
    named = [name for name in labs if name in path.stem]
    name = only or next(iter(found + named), "")
    if not name:
        raise Refused("no cell of any lab was found in it; name the lab by --lab, if its cells have lost their ids")
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        raise Refused("it holds no code")
    return notebook, name


def _whole(cell):
    """Return the cell with all that is read of one, whatever it lacks."""
    metadata = cell.get("metadata") or {}
    tags = [tag for tag in metadata.get("tags") or [] if isinstance(tag, str)]
    return nbformat.from_dict(
        {
            "id": str(cell.get("id", "")),
            "cell_type": str(cell.get("cell_type", "of no type")),
            "source": str(cell.get("source", "")),
            "metadata": {"tags": tags},
        }
    )


def _why(number: int, checks: list, outcomes: dict, teachers) -> str:
    """Return what went wrong first: in the exercise's own cell, else in its checks."""
    own = [cell for cell in teachers.cells if source.is_exercise(cell) and source.exercise(cell) == number]
    for cell in own + checks:
        outcome = outcomes.get(cell.id)
        if outcome is None:
            return LATE[0]
        if not outcome.passed:
            return outcome.why
    return ""


def _gone(number: int) -> str:
    return f'raise NotImplementedError("exercise {number} is left out")'


def _nothing(student: str, lab: source.Lab | None, error: Exception) -> Grade:
    why = str(error) if isinstance(error, Refused) else f"it could not be graded ({type(error).__name__}: {error})"
    of = sum(lab.points().values()) if lab else 0
    return Grade(student=student, lab=lab.name if lab else "?", exercise=0, points=0, of=of, why=why)


def _name(path: Path, folder: Path) -> str:
    """Return the file's name inside the folder, of letters that can be printed."""
    return str(path.relative_to(folder).with_suffix("")).encode(errors="replace").decode()


def _student(path: Path, folder: Path) -> str:
    return Path(_name(path, folder)).parts[0]


def _told_apart(found: list[tuple[str, list[Grade]]]) -> list[Grade]:
    """Return all grades in a row; a student with two notebooks of one lab has the name of each file."""
    notebooks = Counter((grades[0].student, grades[0].lab) for _, grades in found)
    return [
        replace(one, student=name) if notebooks[one.student, one.lab] > 1 else one
        for name, grades in found
        for one in grades
    ]


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _key(path: Path, data: bytes, labs: dict, only: str) -> str:
    """Tell this submission, and what it is graded by, from any other."""
    by = only + "".join(cell.source for lab in labs.values() for cell in lab.cells)
    return hashlib.sha256(data + os.fsencode(path) + by.encode()).hexdigest()


def _opened(path: Path, mode: str):
    try:
        return path.open(mode, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror}). Give a folder that you may write to.") from None


def _kept(path: Path) -> dict[str, list[Grade]]:
    kept = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
            kept[entry["key"]] = [Grade(**one) for one in entry["grades"]]
        except (ValueError, KeyError, TypeError):  # empty, cut off as the run that wrote it was killed, or not ours
            continue
    return kept
