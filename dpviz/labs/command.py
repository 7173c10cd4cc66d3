"""python -m dpviz labs release | grade | check: what a teacher says."""

from __future__ import annotations

import argparse
from pathlib import Path

from dpviz.labs import grade, prove, release, source


def main(arguments: list[str]) -> int:
    """Run the command and return the exit status: 0 done, 1 where a lab or its release is not as it must be, 2 where
    something given was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m dpviz labs", description="Classroom labs, for teachers.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="release | grade | check")
    for name, run, told in (
        ("release", _release, "make the students' notebooks from labs/source"),
        ("check", _check, "see that each lab's solution passes, and that its checks fail without it"),
    ):
        one = commands.add_parser(name, help=told, description=told)
        one.add_argument("lab", nargs="*", help="such as lab01; all of them where none is named")
        one.set_defaults(run=run)
    told = "write the teacher's notebooks for nbgrader instead, into DIR/source/labNN"
    commands.choices["release"].add_argument("--nbgrader", type=Path, metavar="DIR", help=told)
    one = commands.add_parser("grade", help="grade a folder of submissions", description=grade.UNTRUSTED)
    one.add_argument("folder", type=Path, help="holds the submitted notebooks, or a folder for each student")
    one.add_argument("--lab", default="", help="which lab they are, where their cells have lost their ids")
    one.add_argument("--limit", type=float, default=60.0, metavar="SECONDS", help="for one submission (60)")
    one.add_argument("--out", type=Path, metavar="FILE", help="the table (grades.csv in the folder)")
    one.add_argument("--again", action="store_true", help="grade anew what was graded before")
    one.set_defaults(run=_grade)
    options = parser.parse_args(arguments)
    return options.run(options)


def _release(options) -> int:
    for lab in _labs(options.lab):
        if options.nbgrader:
            print(release.for_nbgrader(lab, options.nbgrader / "source" / lab.name))
        else:
            print(release.release(lab, source.folder() / "release"), flush=True)
    return 0


def _check(options) -> int:
    wrong = 0
    for lab in _labs(options.lab):
        found = [*prove.up_to_date(lab), *prove.complaints(lab, thorough=True)]
        print(
            f"{lab.name}: {len(lab.exercises())} exercises, {'as they must be' if not found else 'WRONG'}", flush=True
        )
        for line in found:
            print(f"  {line}")
        wrong += bool(found)
    return 1 if wrong else 0


def _grade(options) -> int:
    if not 5 <= options.limit <= 3600:
        raise ValueError(f"--limit is {options.limit:g}, but it must be from 5 to 3600 seconds.")
    out = options.out or options.folder / "grades.csv"
    if out.is_dir():
        raise ValueError(f"{out} is a folder. Name a file for the table by --out, such as {out / 'grades.csv'}.")
    if options.out and not out.parent.is_dir():
        raise ValueError(f"--out is {out}, but there is no folder {out.parent}.")
    grades = grade.grade(options.folder, limit_s=options.limit, only=options.lab, again=options.again, say=_spoken)
    try:
        grade.write(grades, out)
    except OSError as error:
        raise ValueError(f"{out} cannot be written ({error.strerror}). Name another file by --out.") from None
    for line in _table(grades):
        print(line)
    print(f"written: {out}")
    return 0


def _spoken(line: str) -> None:
    print(line, flush=True)  # at once, also into a file: it is the progress


def _labs(names: list[str]) -> list[source.Lab]:
    known = {path.stem: path for path in source.paths()}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no lab named {name!r}. The labs are: {', '.join(known)}.")
    return [source.read(known[name]) for name in names or known]


def _table(grades: list[grade.Grade]) -> list[str]:
    wide = max(7, *(len(one.student) for one in grades)) if grades else 7
    lines = [f"\n{'student':{wide}}  lab    exercise  points  why"]
    for one in grades:
        number = one.exercise or "-"
        lines.append(f"{one.student:{wide}}  {one.lab:5}  {number!s:>8}  {one.points}/{one.of:<5} {one.why}".rstrip())
    return lines
