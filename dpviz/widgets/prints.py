"""Prints of one thread, caught. A panel draws on a thread of its own, and JupyterLab shows what that prints nowhere."""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator

_one_at_a_time = threading.Lock()


class _OfOneThread:
    """Stands in for sys.stdout: the thread's own writes are kept, all others go where they went before."""

    def __init__(self, before, kept: io.StringIO):
        self._before, self._kept, self._thread = before, kept, threading.get_ident()

    def write(self, text: str) -> int:
        return (self._kept if threading.get_ident() == self._thread else self._before).write(text)

    def __getattr__(self, name):
        return getattr(self._before, name)


@contextlib.contextmanager
def prints_of_this_thread() -> Iterator[io.StringIO]:
    """Within, what this thread prints goes to the StringIO that is given."""
    with _one_at_a_time:
        before, kept = sys.stdout, io.StringIO()
        ours = sys.stdout = _OfOneThread(before, kept)
        try:
            yield kept
        finally:
            if sys.stdout is ours:
                sys.stdout = before
