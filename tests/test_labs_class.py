"""A class of thirty hands in one lab: three of them are broken, endless, or kill their kernel."""

import time

import nbformat
import pytest

from dpviz.labs import grade, source

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.thorough,
]


def test_thirty_submissions_are_graded_in_a_quarter_of_an_hour_and_a_stop_loses_nothing(tmp_path):
    lab = source.read(source.paths()[0])
    exercises, of = lab.exercises(), lab.points()
    expected = {}
    for number in range(27):
        solved = {exercise for exercise in exercises if (number + exercise) % 4}
        nbformat.write(lab.notebook(solved=solved, hidden=False), tmp_path / f"student{number:02}.ipynb")
        expected[f"student{number:02}"] = sum(of[exercise] for exercise in solved)
    (tmp_path / "broken.ipynb").write_text("{")
    for name, code in {"endless": "while True:\n    pass", "killer": "import os\n\nos._exit(1)"}.items():
        notebook = lab.notebook(hidden=False)
        [cell] = [one for one in notebook.cells if one.id == "lab01-ex3"]
        cell.source = code
        nbformat.write(notebook, tmp_path / f"{name}.ipynb")
        expected[name] = sum(of.values()) - of[3]
    expected["broken"] = 0

    class Stopped(Exception):
        pass

    def say_until_ten(line):
        if line.startswith("10/30"):
            raise Stopped

    began = time.monotonic()
    with pytest.raises(Stopped):
        grade.grade(tmp_path, say=say_until_ten)
    said = []
    grades = grade.grade(tmp_path, say=said.append)
    minutes = (time.monotonic() - began) / 60
    print(f"30 submissions: {minutes:.1f} minutes")
    assert sum(line.endswith("(kept from before)") for line in said) == 9  # the broken one, first of all, is read anew
    got = {name: sum(one.points for one in grades if one.student == name) for name in expected}
    assert got == expected
    assert minutes < 15
