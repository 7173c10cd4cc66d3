"""Does a lab check what it says it checks? The cells of one lab, run in this process by each way of solving it.

Notebooks prove the same (a test runs them by nbval), a kernel each; here all share one pool of warm ranks, so that
every exercise can be solved alone.
"""

from __future__ import annotations

import contextlib
import io
import traceback
from collections.abc import Iterator

from dpviz.labs import release, source


def outcomes(lab: source.Lab, *, solved: set[int] | None = None, only: set[int] | None = None) -> dict[str, str]:
    """Run the lab with these exercises solved (None: all) and return {cell id: the last line of its error, "" where it
    passed} of its code cells; `only` runs just the checks of these exercises.
    """
    names: dict = {"__name__": "__main__"}
    found = {}
    for cell in lab.notebook(solved=solved).cells:
        left_out = only is not None and source.is_check(cell) and source.exercise(cell) not in only
        if cell.cell_type == "code" and not left_out:
            found[cell.id] = _error(cell, names)
    return found


def complaints(lab: source.Lab, *, thorough: bool = False) -> Iterator[str]:
    """Yield what is wrong with the lab: its own solution fails, a check passes that should not, or the reverse.

    thorough   with one exercise solved, also see that the checks of all others fail
    """
    checks = {cell.id: source.exercise(cell) for cell in lab.cells if source.is_check(cell)}
    for cell, error in outcomes(lab).items():
        if error:
            yield f"solved, {cell} fails: {error}"
    for cell, error in outcomes(lab, solved=set()).items():
        if bool(error) != (cell in checks):
            yield f"unsolved, {cell} {'fails' if error else 'passes'}: {error}"
    for number in lab.exercises():
        for cell, error in outcomes(lab, solved={number}, only=None if thorough else {number}).items():
            if bool(error) != (cell in checks and checks[cell] != number):
                yield f"with exercise {number} alone solved, {cell} {'fails' if error else 'passes'}: {error}"


def up_to_date(lab: source.Lab) -> Iterator[str]:
    """Yield in what the released notebook is not what the source says, and what it gives away."""
    path = source.folder() / "release" / f"{lab.name}.ipynb"
    if differs := release.differs(lab, path):
        yield f"{differs}: say python -m dpviz labs release"
        return
    yield from (f"{path.name} gives away: {line}" for line in release.leaks(lab, path))


def _error(cell, names: dict) -> str:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(cell.source, f"<{cell.id}>", "exec"), names)
    except Exception as error:  # whatever a check may raise
        return traceback.format_exception_only(error)[-1].strip()
    return ""
