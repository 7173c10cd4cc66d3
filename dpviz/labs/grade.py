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
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import nbformat

from dpviz.labs import marking, source

KEPT = ".dpviz-grades.jsonl"
LARGEST_BYTES = 50_000_000  # of a submitted file
UNTRUSTED = "Submissions run on this machine, as you. Work that you do not trust belongs in a container: grade in one."


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
    grades: list[Grade] = []
    with (folder / KEPT).open("w" if again else "a", encoding="utf-8") as file:
        file.write("\n" * bool(kept))  # after a line that a killed run did not end
        for number, path in enumerate(submissions, start=1):
            student, began = _student(path, folder), time.monotonic()
            key = _key(path, labs)
            if key in kept:
                found, how = kept[key], "kept from before"
            else:
                found = list(_graded(path, student, labs, limit_s, only))
                how = f"{time.monotonic() - began:.0f} s"
                file.write(json.dumps({"key": key, "grades": [asdict(one) for one in found]}) + "\n")
                file.flush()
            grades += found
            got, of = sum(one.points for one in found), sum(one.of for one in found)
            say(f"{number}/{len(submissions)} {student}: {got} of {of} points ({how})")
    return grades


def write(grades: list[Grade], path: Path) -> None:
    """Write the grades as a table of comma-separated values, a line an exercise."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.DictWriter(file, list(Grade.__dataclass_fields__))
        rows.writeheader()
        rows.writerows(asdict(one) for one in grades)


def merged(lab: source.Lab, notebook):
    """Return the teacher's notebook with the exercise cells of the student's, and {exercise: why it has none}."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    by_id = {cell.get("id", ""): cell for cell in code}
    by_tag = {source.exercise(cell): cell for cell in reversed(code) if source.is_exercise(cell)}  # the first stays
    teachers, missing = lab.notebook(), {}
    for cell in teachers.cells:
        if not source.is_exercise(cell):
            continue
        number = source.exercise(cell)
        found = by_id.get(cell.id) or by_tag.get(number)
        if found is None:
            missing[number] = "the cell is missing"
            cell.source = _gone(number)
        else:
            cell.source = found.source
    return teachers, missing


def _graded(path: Path, student: str, labs: dict, limit_s: float, only: str) -> Iterator[Grade]:
    try:
        notebook, name = _read(path, labs, only)
    except ValueError as error:
        lab = labs[only] if only else None
        whole = sum(lab.points().values()) if lab else 0
        yield Grade(student=student, lab=only or "?", exercise=0, points=0, of=whole, why=str(error))
        return
    lab = labs[name]
    teachers, failed = merged(lab, notebook)
    passed: dict[str, marking.Outcome] = {}
    until = time.monotonic() + limit_s
    while (left := until - time.monotonic()) > 1:
        marked = marking.run(teachers, limit_s=left)
        passed |= marked.outcomes
        culprit = next((source.exercise(cell) for cell in teachers.cells if cell.id == marked.stopped), None)
        if culprit is None or culprit in failed:
            break
        failed[culprit] = marked.why  # once more without it: the others' points are not lost
        for cell in teachers.cells:
            if source.is_exercise(cell) and source.exercise(cell) == culprit:
                cell.source = _gone(culprit)
    for number, of in lab.points().items():
        checks = [cell for cell in teachers.cells if source.is_check(cell) and source.exercise(cell) == number]
        got = sum(source.points(cell) for cell in checks if cell.id in passed and passed[cell.id].passed)
        why = failed.get(number) or _why(number, checks, passed, teachers)
        yield Grade(student=student, lab=name, exercise=number, points=0 if number in failed else got, of=of, why=why)


def _read(path: Path, labs: dict, only: str):
    """Return the notebook and the name of its lab. Raises ValueError with why there is none."""
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"the file has {path.stat().st_size / 1e6:.0f} MB, and at most 50 MB are read")
    try:
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        ids = {cell.get("id", "") for cell in notebook.cells}
    except Exception as error:  # of a parser, given anything at all
        raise ValueError(f"it cannot be read as a notebook ({type(error).__name__})") from None
    found = [name for name, lab in labs.items() if {cell.id for cell in lab.cells if source.is_exercise(cell)} & ids]
    named = [name for name in labs if name in path.stem]
    name = only or next(iter(found + named), "")
    if not name:
        raise ValueError("no cell of any lab was found in it; name the lab by --lab, if its cells have lost their ids")
    if not any(cell.cell_type == "code" for cell in notebook.cells):
        raise ValueError("it holds no code")
    return notebook, name


def _why(number: int, checks: list, outcomes: dict, teachers) -> str:
    """Return what went wrong first: in the exercise's own cell, else in its checks."""
    own = [cell for cell in teachers.cells if source.is_exercise(cell) and source.exercise(cell) == number]
    for cell in own + checks:
        outcome = outcomes.get(cell.id)
        if outcome is None:
            return "it was not reached in time"
        if not outcome.passed:
            return outcome.why
    return ""


def _gone(number: int) -> str:
    return f'raise NotImplementedError("exercise {number} is left out")'


def _student(path: Path, folder: Path) -> str:
    inside = path.relative_to(folder)
    return inside.parts[0] if len(inside.parts) > 1 else path.stem


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _key(path: Path, labs: dict) -> str:
    """Tell this submission, and the labs that it is graded by, from any other."""
    by = "".join(cell.source for lab in labs.values() for cell in lab.cells)
    return hashlib.sha256(path.read_bytes() + str(path).encode() + by.encode()).hexdigest()


def _kept(path: Path) -> dict[str, list[Grade]]:
    kept = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:  # empty, or cut off as the run that wrote it was killed
            continue
        kept[entry["key"]] = [Grade(**one) for one in entry["grades"]]
    return kept
