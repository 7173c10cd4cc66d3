"""Running the lessons again: facts stay, what changes from run to run goes, and a failure changes no file."""

import importlib.util
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_notebook, new_output

SPEC = importlib.util.spec_from_file_location("execute", Path(__file__).parents[1] / "lessons" / "execute.py")
execute = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(execute)


def test_two_equal_runs_leave_equal_files(tmp_path):
    path = tmp_path / "lesson.ipynb"
    cells = ["from pathlib import Path\nprint(1 + 1, Path.cwd().name)", "import ipywidgets\nipywidgets.IntSlider(3)"]
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), path)
    assert execute.main([str(path)]) == 0
    first = path.read_text(encoding="utf-8")
    assert execute.main([str(path)]) == 0
    assert path.read_text(encoding="utf-8") == first
    printed, widget = (cell.outputs for cell in nbformat.read(path, as_version=4).cells)
    assert printed[0]["text"] == f"2 {tmp_path.name}\n"
    assert widget[0]["data"] == {"text/plain": "IntSlider(value=3)"}


def test_what_changes_from_run_to_run_is_taken_out():
    view = {execute.WIDGET_VIEW: {"model_id": "random"}}
    cell = new_code_cell("x", metadata={"execution": {"iopub.status.busy": "now"}, "tags": ["kept"]})
    cell.outputs = [
        new_output("display_data", data={**view, "text/plain": "Panel"}),
        new_output("display_data", data=view),
    ]
    metadata = {"widgets": {"state": {}}, "language_info": {"name": "python", "version": "3.11.7"}}
    done = execute.stable(new_notebook(cells=[cell], metadata=metadata))
    assert done.metadata == {"language_info": {"name": "python"}}
    assert done.cells[0].metadata == {"tags": ["kept"]}
    assert [output["data"] for output in done.cells[0].outputs] == [{"text/plain": "Panel"}, view]


def test_a_cell_that_fails_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "lesson.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("print(1)"), new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    told = execute.main([str(path)])
    assert "is left as it was, since a cell failed" in told and "ZeroDivisionError" in told
    assert path.read_bytes() == before


def test_a_lesson_that_does_not_exist_is_answered_with_those_that_do():
    told = execute.main(["lessons/99_none.ipynb"])
    assert told.startswith("lessons/99_none.ipynb does not exist. The lessons are: ")
