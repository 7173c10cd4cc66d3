"""The style sheet of panels and predictions, the spans that use its classes, and how long a repr may be."""

from __future__ import annotations

import functools
from pathlib import Path

LONGEST_REPR = 109  # ipywidgets cuts a longer one


@functools.cache
def sheet() -> str:
    """The style sheet as an HTML element: widgets carry it with them, so it is there wherever they are shown."""
    return f"<style>{Path(__file__).with_name('panel.css').read_text(encoding='utf-8')}</style>"


def span(text: str, css: str) -> str:
    return f"<span class='{css}'>{text}</span>"
