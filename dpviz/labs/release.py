"""What a student gets: labs/release/labNN.ipynb, with stubs instead of solutions and the expected output of each check.

The expected outputs are made by running the solved lab: a check that the author's own solution does not pass stops the
release.
"""

from __future__ import annotations

from pathlib import Path

import nbformat

from dpviz.labs import source

CELL_TIMEOUT_S = 120


def release(lab: source.Lab, place: Path) -> Path:
    """Run the solved lab, write the student's notebook into `place` and return its path. Raises ValueError where the
    lab's own solution fails.
    """
    student = lab.notebook(solved=set(), hidden=False)
    outputs = {cell.id: cell.get("outputs", []) for cell in _run(lab).cells}
    for count, cell in enumerate((cell for cell in student.cells if cell.cell_type == "code"), start=1):
        if source.is_check(cell):
            cell.outputs, cell.execution_count = outputs[cell.id], count
    nbformat.validate(student)
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{lab.name}.ipynb"
    nbformat.write(student, path)
    return path


def for_nbgrader(lab: source.Lab, place: Path) -> Path:
    """Write the notebook that nbgrader makes its assignment from, solutions marked as nbgrader marks them, and return
    its path.
    """
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{lab.name}.ipynb"
    nbformat.write(lab.notebook(marked=True), path)
    return path


def differs(lab: source.Lab, path: Path) -> str:
    """Return in what the released notebook is not that of the source, "" where it is up to date; outputs, which nbval
    compares, are left out.
    """
    if not path.is_file():
        return f"{path.name} does not exist"
    wanted, found = lab.notebook(solved=set(), hidden=False), nbformat.read(path, as_version=4)
    for one, other in zip(wanted.cells, found.cells, strict=False):
        same = (one.id, one.source, one.metadata) == (other.id, other.source, other.metadata)
        if not same:
            return f"{path.name} differs from its source at {one.id}"
    return "" if len(wanted.cells) == len(found.cells) else f"{path.name} has {len(found.cells)} cells"


def leaks(lab: source.Lab, path: Path) -> list[str]:
    """Return the lines of solutions and hidden tests that stand in the released notebook: there must be none.

    Lines that also stand outside of solutions, such as `return total`, tell nothing and do not count.
    """
    told = path.read_text(encoding="utf-8")
    secret, public = set(), set()
    for cell in lab.cells:
        hidden = [found[0] for found in source.SOLUTION.finditer(cell.source)]
        hidden += [found[0] for found in source.HIDDEN.finditer(cell.source)]
        hidden += [cell.source] if source.is_hidden(cell) else []
        secret |= {line.strip() for text in hidden for line in text.splitlines()}
        shown = cell.source
        for text in hidden:
            shown = shown.replace(text, "")
        public |= {line.strip() for line in shown.splitlines()}
    lines = {line for line in secret - public if len(line) > 12 and not line.startswith("#")}
    return sorted(line for line in lines if line.replace('"', '\\"') in told) + ["### BEGIN"] * ("### BEGIN" in told)


def _run(lab: source.Lab):
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    notebook = lab.notebook()
    client = NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", store_widget_state=False)
    try:
        client.execute()
    except CellExecutionError as error:
        raise ValueError(f"{lab.name} is not released: its own solution fails.\n{error}") from None
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
    return notebook
