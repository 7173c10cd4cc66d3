"""Grading: every kind of submission gets its row, nobody's fault costs another's points, nothing is left running."""

import csv
import json
import os
import tempfile
import time
from types import SimpleNamespace

import nbformat
import psutil
import pytest

from dpviz.__main__ import main
from dpviz.labs import grade, marking, source

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
from dpviz.labs import expect

expect.equal("half(2)", half(2), 1)
"""
OF = {1: 3, 2: 1, 3: 1}
STUBBORN = """def double(x):
    try:
        while True:
            pass
    except KeyboardInterrupt:
        double(x)
"""


@pytest.fixture(autouse=True)
def tiny(tmp_path_factory, monkeypatch):
    """A lab without ranks, so that only the grading takes time."""
    path = tmp_path_factory.mktemp("labs") / "lab01.py"
    path.write_text(TINY)
    monkeypatch.setattr(source, "paths", lambda: [path])
    global LAB
    LAB = source.read(path)


@pytest.fixture
def short_cells(monkeypatch):
    """A cell may take a twelfth of the time, so that an endless one is soon waited for."""
    monkeypatch.setattr(marking, "CELL_SHARE", 12)


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


@pytest.mark.thorough
def test_what_never_ends_kills_its_kernel_or_floods_costs_its_own_points_alone(tmp_path, short_cells):
    """In one notebook: the exercise is left out, and the rest runs again."""
    notebook = submission(
        ex1="def double(x):\n    while True:\n        pass",
        ex2="import os\n\n\ndef triple(x):\n    return 3 * x\n\n\nos._exit(3)",
    )
    grades, _ = graded(notebook, tmp_path, limit_s=30)
    assert points(grades) == everything_but(1, 2)
    why = {one.exercise: one.why for one in grades}
    assert (why[1], why[2]) == ("took too long", "its kernel ended")


@pytest.mark.thorough
def test_an_endless_exercise_with_two_checks_takes_the_time_of_one(tmp_path, short_cells):
    marked = marking.run(submission_with_all_checks(ex1="def double(x):\n    while True:\n        pass"), limit_s=20)
    assert (marked.stopped, marked.why) == ("lab01-ex1-check-1", "took too long")
    assert "lab01-ex1-check-2" not in marked.outcomes


def submission_with_all_checks(**changed):
    return grade.merged(LAB, submission(**changed))[0]


def test_one_that_fills_the_memory_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "MOST_BYTES", 300_000_000)
    flood = "while True:\n    print('x' * 1_000_000)\n"
    began = time.monotonic()
    marked = marking.run(submission(solved=(), ex1=flood), limit_s=40)
    assert marked.stopped == "lab01-ex1" and marked.why, marked
    assert time.monotonic() - began < 60


@pytest.mark.thorough
def test_two_that_never_end_leave_the_third_its_points_though_one_of_them_catches_the_interrupt(tmp_path, short_cells):
    notebook = submission(ex1=STUBBORN, ex2="def triple(x):\n    while True:\n        pass")
    grades, _ = graded(notebook, tmp_path, limit_s=30)
    assert points(grades) == everything_but(1, 2)
    assert [one.why for one in grades] == ["took too long", "took too long", ""]


def test_what_is_decided_is_not_run_again(tmp_path, monkeypatch):
    runs = []

    def run(notebook, **_):
        runs.append([cell.id for cell in notebook.cells if source.is_check(cell)])
        if len(runs) == 1:
            told = {
                "lab01-ex1-check-1": marking.Outcome(passed=True),
                "lab01-ex1-check-2": marking.Outcome(passed=True),
            }
            return marking.Marked(outcomes=told, stopped="lab01-ex2-check-1", why="took too long")
        return marking.Marked(outcomes={"lab01-ex3-check-1": marking.Outcome(passed=True)})

    monkeypatch.setattr(marking, "run", run)
    grades, _ = graded(submission(), tmp_path)
    assert points(grades) == everything_but(2)
    assert len(runs[0]) == 4 and runs[1:] == [["lab01-ex3-check-1"]]


def test_each_that_is_stopped_gives_the_others_a_cells_time_and_at_most_twice_the_limit(tmp_path, monkeypatch):
    for share, took, limits in ((4, 15, [60, 60, 60]), (4, 50, [60, 25, 15]), (1, 60, [60, 60])):
        clock, given = [0.0], []

        def run(notebook, *, limit_s, cell_s, clock=clock, given=given, took=took, share=share):
            assert cell_s == 60 / share
            given.append(limit_s)
            clock[0] += min(took, limit_s)
            return marking.Marked(outcomes={}, stopped=f"lab01-ex{len(given)}", why="took too long")

        monkeypatch.setattr(marking, "run", run)
        monkeypatch.setattr(marking, "CELL_SHARE", share)
        monkeypatch.setattr(grade, "time", SimpleNamespace(monotonic=lambda clock=clock: clock[0]))
        graded(submission(), tmp_path, again=True)
        assert given == limits


def test_an_exercise_cannot_switch_off_the_checks_or_its_own_cell(tmp_path):
    notebook = submission(
        ex1="# NBVAL_SKIP\ndef double(x):\n    return 2 * x",
        ex2="from dpviz.labs import expect as e\n\ne.equal = print\n\n\ndef triple(x):\n    return 3 * x",
        ex3="class expect:\n    equal = print\n\n\ndef half(x):\n    return x",
    )
    grades, _ = graded(notebook, tmp_path)
    assert points(grades) == everything_but(3)
    assert grades[-1].why == "AssertionError: half(2): measured 2, expected 1."


def test_an_exercise_that_became_text_has_a_row_that_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "run", passes)
    notebook = submission()
    for cell in notebook.cells:
        if cell.id == "lab01-ex2":
            cell.cell_type = "markdown"
            del cell["outputs"], cell["execution_count"]
    grades, _ = graded(notebook, tmp_path)
    assert points(grades) == everything_but(2)
    assert grades[1].why == "the cell is markdown, not code"


def passes(notebook, **_):
    return marking.Marked(outcomes={cell.id: marking.Outcome(passed=True) for cell in notebook.cells})


def test_an_odd_notebook_has_its_row_and_ends_nobody_elses_grading(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "run", passes)
    for name, change in {
        "no_source": lambda cell: cell.pop("source"),
        "no_type": lambda cell: cell.pop("cell_type"),
        "no_tags": lambda cell: cell["metadata"].update(tags=None),
        "a_list": lambda cell: cell.update(id=["x"]),
        "a_number": lambda cell: cell.update(source=[3]),
    }.items():
        raw = json.loads(nbformat.writes(submission()))
        for cell in raw["cells"]:
            change(cell)
        (tmp_path / f"{name}.ipynb").write_text(json.dumps(raw))
    (tmp_path / "other.ipynb").write_text("[1]")
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "link.ipynb").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.ipynb")
    nbformat.write(submission(), tmp_path / "zoe.ipynb")
    grades = grade.grade(tmp_path, say=lambda line: None)
    found = {one.student: one for one in grades}
    for name in ("no_source", "no_tags", "zoe"):
        assert points(one for one in grades if one.student == name) == OF
    for name in ("no_type", "a_list", "a_number", "other"):
        assert found[name].points == 0 and found[name].why, name
    assert found["folder"].why == "it is a folder, not a notebook"
    assert found["link"].why == found["pipe"].why == "there is no file behind its name"


def test_what_cannot_be_read_or_graded_has_its_row_and_a_large_file_is_not_read(tmp_path, monkeypatch):
    def run(notebook, **_):
        raise RuntimeError("no more disk")

    read = []

    def read_bytes(path):
        read.append(path.stem)
        if path.stem == "locked":
            raise PermissionError(13, "Permission denied")
        with path.open("rb") as file:
            return file.read()

    monkeypatch.setattr(marking, "run", run)
    monkeypatch.setattr(type(tmp_path), "read_bytes", read_bytes)
    monkeypatch.setattr(grade, "LARGEST_BYTES", 1_000_000)
    (tmp_path / "large.ipynb").write_bytes(b"x" * 2_000_000)
    for name in ("good", "locked"):
        nbformat.write(submission(), tmp_path / f"{name}.ipynb")
    grades = grade.grade(tmp_path, say=lambda line: None, only="lab01")
    assert {one.student: (one.lab, one.exercise, one.of, one.why) for one in grades} == {
        "good": ("lab01", 0, 5, "it could not be graded (RuntimeError: no more disk)"),
        "large": ("lab01", 0, 5, "the file has 2 MB, and at most 1 MB are read"),
        "locked": ("lab01", 0, 5, "the file cannot be read (Permission denied)"),
    }
    assert sorted(read) == ["good", "locked"]


def test_what_was_not_recognised_or_not_reached_is_graded_anew_once_it_can_be(tmp_path, monkeypatch):
    calls = []

    def run(notebook, **_):
        calls.append(notebook)
        return marking.Marked(outcomes={}) if len(calls) == 1 else passes(notebook)

    monkeypatch.setattr(marking, "run", run)
    notebook = submission()
    for cell in notebook.cells:
        cell["id"] = f"other-{cell.id}"
    nbformat.write(notebook, tmp_path / "anna.ipynb")
    look = {"say": lambda line: None}
    assert grade.grade(tmp_path, **look)[0].lab == "?"
    assert grade.grade(tmp_path, only="lab01", **look)[0].why == "it was not reached in time"
    grade.grade(tmp_path, only="lab01", **look)
    assert len(calls) == 1
    assert points(grade.grade(tmp_path, only="lab01", limit_s=90, **look)) == OF
    grade.grade(tmp_path, only="lab01", **look)
    assert points(grade.grade(tmp_path, only="lab01", limit_s=120, **look)) == OF
    assert len(calls) == 2


def test_two_notebooks_of_one_student_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "run", passes)
    for name in ("anna/lab01", "anna/lab01-Copy1", "ben/lab01", "carl", "carl/old/lab01"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        nbformat.write(submission(), tmp_path / f"{name}.ipynb")
    for _ in range(2):  # the second time from what was kept
        students = [one.student for one in grade.grade(tmp_path, say=lambda line: None)]
        assert sorted(set(students)) == ["anna/lab01", "anna/lab01-Copy1", "ben", "carl", "carl/old/lab01"]
        assert len(students) == 15


def test_broken_empty_and_foreign_files_have_a_row_and_the_others_are_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(marking, "run", lambda notebook, **_: marking.Marked(outcomes={}))
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

    def run(notebook, **_):
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
        file.write('{"a": 1}\n[1]\n{"key": "x", "grades": [{"a": 1}]}\n{"key": "cut o')
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
    monkeypatch.setattr(marking, "run", lambda notebook, **_: marking.Marked(outcomes=everything))
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
        (["grade", ".", "--out", "."], ". is a folder. Name a file for the table by --out, such as grades.csv"),
        (["check", "lab99"], "there is no lab named 'lab99'. The labs are: lab01"),
    ],
)
def test_what_cannot_be_is_a_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["labs", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_nothing_is_left_running(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    marked = marking.run(submission(solved={1}), limit_s=60)
    assert [cell for cell, outcome in marked.outcomes.items() if outcome.passed and "check" in cell] == [
        "lab01-ex1-check-1",
    ]
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
    everybody = [" ".join(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in everybody if f"{tmp_path}/dpviz-lab-" in line]


def test_the_report_of_a_notebook_is_written_as_it_goes():
    told = [{"cell": "a"}, {"cell": "a", "passed": True, "why": ""}, {"cell": "b"}]
    marked = marking._marked("\n".join(map(json.dumps, told)), "stopped after 60 s")
    assert (marked.stopped, marked.why) == ("b", "stopped after 60 s") and marked.outcomes["a"].passed
