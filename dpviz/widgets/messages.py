"""What ranks print and what goes wrong, as HTML: JupyterLab shows neither when it happens outside of a cell."""

from __future__ import annotations

import html
import linecache
import os
import traceback

from dpviz.ranks.errors import RankError

MOST_LINES = 40


def printed(lines: list[str]) -> str:
    """The newest lines that ranks printed, and how many came before them."""
    if not lines:
        return ""
    cut = f"… {len(lines) - MOST_LINES} lines before\n" if len(lines) > MOST_LINES else ""
    return f"<pre>{html.escape(cut + chr(10).join(lines[-MOST_LINES:]))}</pre>"


def explained(error: BaseException) -> str:
    """An error as its sentence, the lines of the cell that raised it, and for a rank's error where every rank was."""
    if isinstance(error, RankError):
        who = ", ".join(map(str, error.ranks))
        head = f"Rank {who} raised {error.kind}: {error.message}" if error.kind else f"Rank error: {error.why}"
        frames = error.frames
        report = f"<summary>Where every rank was</summary><pre>{html.escape(error.report)}</pre>"
        more = f"<details class='dpviz-soft'>{report}</details>"
    elif isinstance(error, ValueError):
        head, frames, more = str(error), [], ""
    else:
        head = f"{type(error).__name__}: {error}"
        frames = [(f.filename, f.lineno, f.name) for f in traceback.extract_tb(error.__traceback__)]
        more = ""
    code = "".join(_place(*frame) for frame in _own(frames))
    return f"<div class='dpviz-error'><b>{html.escape(head)}</b>{code}{more}</div>"


def _own(frames) -> list[tuple[str, int, str]]:
    """The frames of notebook cells, at most the innermost two; where there is none, the innermost frame."""
    return [frame for frame in frames if _cell(frame[0])][-2:] or list(frames[-1:])


def _place(file: str, line: int, function: str) -> str:
    where = f"{_cell(file) or os.path.basename(file)}, line {line}, in {function}"
    rows = []
    for number in range(max(1, line - 2), line + 2):
        text = linecache.getline(file, number).rstrip("\n")
        if text or number == line:
            row = f"{'▶' if number == line else ' '} {number:>3}  {html.escape(text)}"
            rows.append(f"<span class='dpviz-guilty'>{row}</span>" if number == line else row)
    code = "\n".join(rows)
    return f"<div class='dpviz-soft'>{html.escape(where)}</div><pre>{code}</pre>"


def _cell(file: str) -> str | None:
    """'Cell In[3]' for the file name that IPython gave to a cell, else None."""
    try:
        from IPython import get_ipython

        return " ".join(get_ipython().compile.format_code_name(file))
    except (AttributeError, ImportError, TypeError):  # no notebook, or not a cell of this one
        return None
