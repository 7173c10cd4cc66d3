"""Run the lessons from top to bottom and store their outputs: `python lessons/execute.py [NOTEBOOK ...]`.

Without a notebook it runs all of them. What changes from run to run and says nothing is left out of the file: execution
times, the Python patch version, and a widget's random id (its text stays, which is what the tests compare).
"""

import argparse
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
CELL_TIMEOUT_S = 300


def execute(notebook, *, folder):
    """Run every cell of `notebook` in a new kernel started in `folder`, and return it with stable outputs."""
    # Widget state would be megabytes a figure, and is of no use without a kernel.
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return stable(notebook)


def stable(notebook):
    """Take out of `notebook`, in place, what differs between two equal runs."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "text/plain" in output.get("data", {}):
                output["data"].pop(WIDGET_VIEW, None)
    return notebook


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python lessons/execute.py", description=__doc__.splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK")
    for path in parser.parse_args(arguments).notebooks or sorted(HERE.glob("*.ipynb")):
        if not path.is_file():
            return f"{path} does not exist. The lessons are: {', '.join(p.name for p in sorted(HERE.glob('*.ipynb')))}"
        started = time.monotonic()
        try:
            notebook = execute(nbformat.read(path, as_version=4), folder=path.resolve().parent)
        except CellExecutionError as error:
            return f"{path} is left as it was, since a cell failed:\n{error}"
        nbformat.write(notebook, path)
        print(f"{path}: {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
