"""Grading: every kind of submission gets its row, nobody's fault costs another's points, nothing is left running."""

import csv
import json
import time

import nbformat
import psutil
import pytest

from dpviz.__main__ import main
from dpviz.labs import grade, marking, source

pytestmark = pytest.mark.quiet

TINY = """# %% tags=["exercise", "ex1"]
def double(x):
    ### BEGIN SOLUTION
    return 2 * x
    ### END SOLUTION

# %% tags=["check", "ex1"]
assert double(2) == 4, "double(2): measured " + str(double(2))
print("exercise 1: right")

# %% tags=["check", "ex1", "hidden", "points-2"]
assert double(-1) == -2

# %% tags=["exercise", "ex2"]
def triple(x):
    ### BEGIN SOLUTION
    return 3 * x
    ### END SOLUTION

# %% tags=["check", "ex2"]
assert triple(2) == 6, "triple(2): measured " + str(triple(2))

# %% tags=["exercise", "ex3"]
def half(x):
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION

# %% tags=["check", "ex3"]
assert half(2) == 1, "half(2): measured " + str(half(2))
"""
OF = {1: 3, 2: 1, 3: 1}


@pytest.fixture(autouse=True)
def tiny(tmp_path_factory, monkeypatch):
    """A lab without ranks, so that only the grading takes time."""
    path = tmp_path_factory.mktemp("labs") / "lab01.py"
    path.write_text(TINY)
    monkeypatch.setattr(source, "paths", lambda: [path])
    global LAB
    LAB = source.read(path)


def submission(solved=None, **changed):
    """The student's notebook with these exercises solved, and the sources of others changed: ex3="..."."""
    notebook = LAB.notebook(solved=set(LAB.exercises()) if solved is None else set(solved), hidden=False)
    for cell in notebook.cells:
        if source.is_exercise(cell) and f"ex{source.exercise(cell)}" in changed:
            cell.source = changed[f"ex{source.exercise(cell)}"]
    return notebook


def points(grades):
    return {one.exercise: one.points for one in grades}


def graded(notebook, folder, **options):
    nbformat.write(notebook, folder / "someone.ipynb")
    said = []
    return grade.grade(folder, say=said.append, **{"limit_s": 60, **options}), said


def everything_but(*lost):
    return {number: 0 if number in lost else of for number, of in OF.items()}


def test_a_right_one_has_all_points_and_an_edited_check_changes_nothing(tmp_path):
    notebook = submission(ex2="def triple(x):\n    return x")
    for cell in notebook.cells:
        if source.is_check(cell):
            cell.source = "print('right')"
    grades, said = graded(notebook, tmp_path)
    assert points(grades) == everything_but(2)
    assert next(one.why for one in grades if one.exercise == 2).startswith("AssertionError: triple(2): measured 2")
    assert said[0] == grade.UNTRUSTED and said[1].startswith("1/1 someone: 4 of 5 points (")


def test_one_without_ids_is_recognised_by_its_name_and_its_tags(tmp_path):
    notebook = submission(solved={1, 3})
    for cell in notebook.cells:
        del cell["id"]
    notebook.nbformat_minor = 4
    (tmp_path / "anna").mkdir()
    nbformat.write(notebook, tmp_path / "anna" / "my lab01 (2).ipynb")
    grades = grade.grade(tmp_path, say=lambda line: None)
    assert points(grades) == everything_but(2)
    assert {one.student for one in grades} == {"anna"}


def test_what_never_ends_kills_its_kernel_or_floods_costs_its_own_points_alone(tmp_path):
    """In one notebook: the exercise is left out, and the rest runs again."""
    notebook = submission(
        ex1="def double(x):\n    while True:\n        pass",
        ex2="import os\n\n\ndef triple(x):\n    return 3 * x\n\n\nos._exit(3)",
    )
    grades, _ = graded(notebook, tmp_path, limit_s=60)
    assert points(grades) == everything_but(1, 2)
    why = {one.exercise: one.why for one in grades}
    assert (why[1], why[2]) == ("took too long", "its kernel ended")


def test_one_that_fills_the_memory_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "MOST_BYTES", 300_000_000)
    flood = "while True:\n    print('x' * 1_000_000)\n"
    began = time.monotonic()
    marked = marking.run(submission(solved=(), ex1=flood), limit_s=40)
    assert marked.stopped == "lab01-ex1" and marked.why, marked
    assert time.monotonic() - began < 60


def test_broken_empty_and_foreign_files_have_a_row_and_the_others_are_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "run", lambda notebook, limit_s: marking.Marked(outcomes={}))
    (tmp_path / "broken.ipynb").write_text('{"cells": [')
    (tmp_path / "empty.ipynb").write_text("")
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "foreign.ipynb")
    nbformat.write(submission(), tmp_path / "good.ipynb")
    notebook = submission()
    notebook.cells = [cell for cell in notebook.cells if source.exercise(cell) != 3]
    nbformat.write(notebook, tmp_path / "lacking.ipynb")
    grades = grade.grade(tmp_path, say=lambda line: None)
    why = {(one.student, one.exercise): one.why for one in grades}
    assert why["broken", 0].startswith("it cannot be read as a notebook (")
    assert why["empty", 0].startswith("it cannot be read as a notebook (")
    assert why["foreign", 0].startswith("no cell of any lab was found in it")
    assert why["lacking", 3] == "the cell is missing"
    assert why["good", 1] == "it was not reached in time"


def test_what_was_graded_is_kept_and_a_changed_submission_is_not(tmp_path, monkeypatch):
    calls = []

    def run(notebook, limit_s):
        calls.append(notebook)
        passed = {cell.id: marking.Outcome(passed=True) for cell in notebook.cells}
        if len(calls) == 2:
            raise KeyboardInterrupt
        return marking.Marked(outcomes=passed)

    monkeypatch.setattr(marking, "run", run)
    for name in ("anna", "ben"):
        nbformat.write(submission(), tmp_path / f"{name}.ipynb")
    with pytest.raises(KeyboardInterrupt):
        grade.grade(tmp_path, say=lambda line: None)
    with (tmp_path / grade.KEPT).open("a") as file:
        file.write('{"key": "cut o')
    said = []
    first = grade.grade(tmp_path, say=said.append)
    assert len(calls) == 3 and said[1].endswith("(kept from before)") and points(first[:3]) == OF
    nbformat.write(submission(solved={1}), tmp_path / "anna.ipynb")
    grade.grade(tmp_path, say=lambda line: None)
    assert len(calls) == 4
    grade.grade(tmp_path, say=lambda line: None, again=True)
    assert len(calls) == 6


def test_the_command_writes_a_table(tmp_path, monkeypatch, capsys):
    everything = {cell.id: marking.Outcome(passed=True) for cell in LAB.notebook().cells}
    monkeypatch.setattr(marking, "run", lambda notebook, limit_s: marking.Marked(outcomes=everything))
    nbformat.write(submission(), tmp_path / "anna.ipynb")
    assert main(["labs", "grade", str(tmp_path)]) == 0
    with (tmp_path / "grades.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["points"]) for row in rows] == list(OF.values())
    assert rows[0] | {"student": "anna", "lab": "lab01", "why": ""} == rows[0]
    assert "anna     lab01         1  3/3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["grade", "nowhere"], "nowhere is no folder. Give the one that holds the submissions"),
        (["grade", "."], "holds no notebook"),
        (["grade", ".", "--limit", "1"], "--limit is 1, but it must be from 5 to 3600 seconds"),
        (["grade", ".", "--out", "none/x.csv"], "there is no folder none"),
        (["check", "lab99"], "there is no lab named 'lab99'. The labs are: lab01"),
    ],
)
def test_what_cannot_be_is_a_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_nothing_is_left_running(tmp_path):
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    marked = marking.run(submission(solved={1}), limit_s=60)
    assert [cell for cell, outcome in marked.outcomes.items() if outcome.passed and "check" in cell] == [
        "lab01-ex1-check-1",
    ]
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
    everybody = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in everybody if "dpviz-lab-" in line]


def test_the_report_of_a_notebook_is_written_as_it_goes():
    told = [{"cell": "a"}, {"cell": "a", "passed": True, "why": ""}, {"cell": "b"}]
    marked = marking._marked("\n".join(map(json.dumps, told)), "stopped after 60 s")
    assert (marked.stopped, marked.why) == ("b", "stopped after 60 s") and marked.outcomes["a"].passed
