"""The labs: released as written; solved right, unsolved wrong, each exercise for itself; wrong answers are told why."""

import os
import re
import runpy
import subprocess
import sys

import nbformat
import pytest

from dpviz.labs import prove, release, source

LABS = {path.stem: source.read(path) for path in source.paths()}
MISTAKES = {
    path.stem: runpy.run_path(str(path))["MISTAKES"] for path in sorted((source.folder() / "mistakes").glob("*.py"))
}
CI = bool(os.environ.get("CI"))


@pytest.fixture(params=LABS, ids=LABS)
def lab(request):
    return LABS[request.param]


def test_the_release_is_up_to_date_and_gives_nothing_away(lab):
    assert list(prove.up_to_date(lab)) == []


@pytest.mark.parametrize(
    "name", ["lab01", *(pytest.param(name, marks=pytest.mark.thorough) for name in LABS if name != "lab01")]
)
def test_solved_passes_unsolved_fails_and_each_exercise_turns_its_own_checks(name):
    assert list(prove.complaints(LABS[name], thorough=CI)) == []


def by_nbval(notebook, folder, *options):
    """Return pytest's own lines of the cells that failed."""
    nbformat.write(notebook, folder / "lab.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(source.folder().parent)}
    done = subprocess.run(
        [*command, "-c", str(source.folder().parent / "pyproject.toml"), "--rootdir", str(folder), *options]
        + ["lab.ipynb"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert " error" not in done.stdout.splitlines()[-1], done.stdout
    return sorted(int(number) for number in re.findall(r"^FAILED lab.ipynb::Cell (\d+)", done.stdout, re.MULTILINE))


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(LABS))
def test_solved_passes_nbval_and_as_released_every_check_fails_and_nothing_else(name, tmp_path):
    """With the outputs that the release carries: nbval compares them."""
    released = nbformat.read(source.folder() / "release" / f"{name}.ipynb", as_version=4)
    checks = [number for number, cell in enumerate(code(released)) if source.is_check(cell)]
    assert by_nbval(released, tmp_path) == checks
    solved = {cell.id: cell for cell in LABS[name].notebook().cells}
    for cell in released.cells:
        cell.source = solved[cell.id].source if source.is_exercise(cell) else cell.source
    assert by_nbval(released, tmp_path) == []


def test_a_lab_has_five_to_eight_exercises_and_its_minutes(lab):
    assert 5 <= len(lab.exercises()) <= 8
    text = "\n".join(cell.source for cell in lab.cells if cell.cell_type == "markdown")
    assert re.search(r"45 minutes", text) and "Extension" in text and "<details><summary>Hint" in text
    assert "!" not in re.sub(r"```.*?```|`[^`]*`|!=|<!--", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", LABS)
def test_a_lab_knows_three_wrong_answers_or_more(name):
    assert len(MISTAKES[name]) >= 3


@pytest.mark.parametrize(
    ("name", "mistake"),
    [pytest.param(name, one, id=f"{name}-{one['name']}") for name, some in MISTAKES.items() for one in some],
)
def test_a_wrong_answer_fails_and_is_told_what_was_measured(name, mistake):
    lab = LABS[name]
    wrong = source.Lab(name, [cell.copy() for cell in lab.cells])
    [cell] = [c for c in wrong.cells if source.is_exercise(c) and source.exercise(c) == mistake["exercise"]]
    before = cell.source[: source.SOLUTION.search(cell.source).start()]
    imports = "".join(line + "\n" for line in before.splitlines() if line.startswith(("import ", "from ")))
    body = mistake["code"].strip("\n")
    cell["source"] = f"{imports}{body}\n\n\ndef _marks():\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION"
    errors = [error for error in prove.outcomes(wrong, only={mistake["exercise"]}).values() if error]
    assert errors, "no check sees it"
    assert re.search(mistake["says"], errors[0]), errors


def test_the_teachers_page_has_a_row_for_each_lab_and_every_mistake():
    page = (source.folder() / "README.md").read_text(encoding="utf-8")
    for path in source.paths():
        assert f"| `{path.stem}` |" in page, path.stem
    told = " ".join(page.split())
    missing = [one["name"] for some in MISTAKES.values() for one in some if " ".join(one["name"].split()) not in told]
    assert not missing


def test_the_teachers_notebook_for_nbgrader_keeps_the_marks(tmp_path):
    lab = LABS["lab01"]
    notebook = nbformat.read(release.for_nbgrader(lab, tmp_path), as_version=4)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert text.count("### BEGIN SOLUTION") == len(lab.exercises()) and "### BEGIN HIDDEN TESTS" in text
    grades = [cell.metadata["nbgrader"] for cell in notebook.cells if "nbgrader" in cell.metadata]
    assert sum(one.get("points", 0) for one in grades) == sum(lab.points().values())
    assert len({one["grade_id"] for one in grades}) == len(grades)


@pytest.mark.thorough
@pytest.mark.parametrize("name", LABS)
def test_solved_passes_where_bytes_are_counted_and_there_is_no_link(name):
    code = f"from dpviz.labs import prove, source; lab = source.read(source.folder() / 'source' / '{name}.py')\n"
    code += "wrong = {cell: why for cell, why in prove.outcomes(lab).items() if why}; assert not wrong, wrong"
    environment = {**os.environ, "DPVIZ_LINK": "none", "DPVIZ_WIRE": "counted"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
