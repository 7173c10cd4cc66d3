"""A sentence that is told below a question, as text and as HTML: a mark, what counts in bold, and the rest."""

from __future__ import annotations

import html


class Said:
    """`mark` is ✓, → or nothing. Its repr is the same on every run, so that a stored notebook can be compared."""

    def __init__(self, mark: str, first: str, rest: str = ""):
        self.mark, self.first, self.rest = mark, first, rest

    def __repr__(self) -> str:
        return " ".join(filter(None, [self.mark, self.first, self.rest]))

    def _repr_html_(self) -> str:
        mark, first, rest = (html.escape(part) for part in (self.mark, self.first, self.rest))
        words = " ".join(filter(None, [mark, f"<b>{first}</b>", rest]))
        return f"<div style='font-size:15px;padding:4px 2px'>{words}</div>"
