"""A lab as its author wrote it: labs/source/labNN.py, jupytext's percent format, with solutions and hidden tests.

A cell of code has tags, in its header: `# %% tags=["exercise", "ex1"]`.

    exercise, exN            a function of the student's: what stands between ### BEGIN SOLUTION and ### END SOLUTION,
                             inside of it, is released as a line that raises NotImplementedError
    check, exN [, points-2]  raises where the exercise is wrong, and prints "exercise N: right" where it is not
    check, exN, hidden       the same, and not released; also what stands between ### BEGIN HIDDEN TESTS and ### END
                             HIDDEN TESTS in a check
    (none)                   everybody's: imports, panels

An exercise needs no other exercise of the same lab to be solved. The ids of cells are made from the tags, so that they
stay when text is added between.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path

import nbformat

SOLUTION = re.compile(r"^([ \t]+)### BEGIN SOLUTION\n.*?^[ \t]+### END SOLUTION[ \t]*$", re.DOTALL | re.MULTILINE)
HIDDEN = re.compile(r"^[ \t]*### BEGIN HIDDEN TESTS\n.*?^[ \t]*### END HIDDEN TESTS[ \t]*\n?", re.DOTALL | re.MULTILINE)
MARKS = re.compile(r"^[ \t]*### (?:BEGIN|END) (?:SOLUTION|HIDDEN TESTS)[ \t]*\n?", re.MULTILINE)
NUMBER = re.compile(r"ex(\d+)")
KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def folder() -> Path:
    """Return the labs' folder of this checkout. Raises ValueError where there is none."""
    for place in (Path(__file__).resolve().parents[2] / "labs", Path.cwd() / "labs"):
        if (place / "source").is_dir():
            return place
    raise ValueError("no labs were found. They come with the repository: change into a checkout of it.")


def paths() -> list[Path]:
    """Return the sources of all labs, in order."""
    return sorted((folder() / "source").glob("lab*.py"))


@dataclass(frozen=True)
class Lab:
    """One lab: `cells` with ids, tags and the author's text."""

    name: str
    cells: list

    def exercises(self) -> list[int]:
        """Return the numbers of the exercises, in order."""
        return [exercise(cell) for cell in self.cells if is_exercise(cell)]

    def points(self) -> dict[int, int]:
        """Return {exercise: points}: of all its checks together."""
        found = dict.fromkeys(self.exercises(), 0)
        for cell in self.cells:
            if is_check(cell):
                found[exercise(cell)] += points(cell)
        return found

    def notebook(self, *, solved: set[int] | None = None, hidden: bool = True, marked: bool = False):
        """Return a notebook without outputs in which these exercises have the author's solution (None: all) and the
        others the stub, with or without hidden checks; `marked` leaves the marks of solutions where they are, for
        nbgrader.
        """
        solved = set(self.exercises()) if solved is None else solved
        cells = [
            _made(cell, solved=exercise(cell) in solved, hidden=hidden, marked=marked)
            for cell in self.cells
            if hidden or not is_hidden(cell)
        ]
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(KERNEL))
        notebook.metadata["language_info"] = {"name": "python"}
        return notebook


def read(path: Path) -> Lab:
    """Return the lab in a source file. Raises ValueError for a cell that breaks the rules above, and where jupytext is
    missing.
    """
    try:
        import jupytext
    except ImportError:
        raise ValueError("reading a lab's source needs jupytext. Say: python -m pip install -e '.[test]'") from None
    lab = Lab(path.stem, jupytext.read(path, fmt="py:percent").cells)
    seen: dict[str, int] = {}
    for cell in lab.cells:
        kind = f"ex{exercise(cell)}" if exercise(cell) else "text" if cell.cell_type == "markdown" else "code"
        kind += "-check" * is_check(cell)
        seen[kind] = seen.get(kind, 0) + 1
        cell["id"] = f"{lab.name}-{kind}" if is_exercise(cell) else f"{lab.name}-{kind}-{seen[kind]}"
        _check(cell, path)
    ids = [cell.id for cell in lab.cells]
    if len(set(ids)) < len(ids):
        raise ValueError(f"{path.name} has two cells for one exercise. Give each a number of its own.")
    unchecked = [number for number in lab.exercises() if not lab.points()[number]]
    if unchecked:
        raise ValueError(
            f"{path.name}: exercise {unchecked[0]} has no check. Add a cell tagged check, ex{unchecked[0]}."
        )
    return lab


def tags(cell) -> list[str]:
    """Return the tags in the cell's header."""
    return cell.metadata.get("tags", [])


def is_exercise(cell) -> bool:
    """Return whether the cell is one that the student writes into."""
    return "exercise" in tags(cell)


def is_check(cell) -> bool:
    """Return whether the cell checks an exercise."""
    return "check" in tags(cell)


def is_hidden(cell) -> bool:
    """Return whether the cell is left out of what students get."""
    return "hidden" in tags(cell)


def exercise(cell) -> int | None:
    """Return the number of the exercise that the cell belongs to, None where it belongs to none."""
    return next((int(found[1]) for tag in tags(cell) if (found := NUMBER.fullmatch(tag))), None)


def points(cell) -> int:
    """Return what a check is worth."""
    return next((int(tag.removeprefix("points-")) for tag in tags(cell) if tag.startswith("points-")), 1)


def stub(source: str, number: int) -> str:
    """Return the exercise as a student gets it."""
    return SOLUTION.sub(rf'\1raise NotImplementedError("exercise {number}: your code here")', source)


def _check(cell, path: Path) -> None:
    if is_exercise(cell) and not SOLUTION.search(cell.source):
        raise ValueError(f"{path.name}: {cell.id} has no indented ### BEGIN SOLUTION ... ### END SOLUTION in it.")
    if (is_exercise(cell) or is_check(cell)) and exercise(cell) is None:
        raise ValueError(f"{path.name}: {cell.id} has no tag ex1, ex2, ... that says which exercise it belongs to.")
    if not is_exercise(cell) and "SOLUTION" in cell.source and MARKS.search(cell.source):
        raise ValueError(f"{path.name}: {cell.id} holds a solution, and is not tagged exercise.")


def _made(cell, *, solved: bool, hidden: bool, marked: bool):
    """Return a new cell, with what nbgrader reads in its metadata."""
    source = cell.source
    if marked:
        source = f"### BEGIN HIDDEN TESTS\n{source}\n### END HIDDEN TESTS" if is_hidden(cell) else source
    elif is_exercise(cell):
        source = MARKS.sub("", source) if solved else stub(source, exercise(cell))
    elif is_check(cell):
        source = MARKS.sub("", source) if hidden else HIDDEN.sub("", source)
    make = nbformat.v4.new_markdown_cell if cell.cell_type == "markdown" else nbformat.v4.new_code_cell
    made = make(source.strip("\n"), id=cell.id, metadata={"tags": tags(cell)} if tags(cell) else {})
    if made.cell_type == "code":
        made.metadata |= {"editable": is_exercise(cell), "deletable": False}
        made.metadata["nbgrader"] = {
            "schema_version": 3,
            "grade_id": cell.id,
            "grade": is_check(cell),
            "solution": is_exercise(cell),
            "locked": not is_exercise(cell),
            "task": False,
        } | ({"points": points(cell)} if is_check(cell) else {})
    return made
