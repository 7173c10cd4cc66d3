"""What torch's profiler has seen of a block, on the clock that everything else here is timed by."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile, record_function

_MARK = "dpviz: one clock"


class Span(NamedTuple):
    """Something that took time, in seconds of time.perf_counter."""

    start_s: float
    end_s: float
    name: str


@contextlib.contextmanager
def profiled() -> Iterator[list[Span]]:
    """Yield a list that holds every event of the block on the CPU, gloo's threads included, by their starts, once the
    block has ended.
    """
    spans: list[Span] = []
    profiler = profile(activities=[ProfilerActivity.CPU])
    with _quietly():
        profiler.start()
    with record_function(_MARK):
        begun = time.perf_counter()
    try:
        yield spans
    finally:
        with _quietly():
            profiler.stop()
    events = profiler.profiler.kineto_results.events()
    shift = begun - next(event.start_ns() for event in events if event.name() == _MARK) / 1e9
    spans += sorted(
        Span(event.start_ns() / 1e9 + shift, event.end_ns() / 1e9 + shift, event.name()) for event in events
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep what the profiler's library says of its start and its stop, on the process's own stderr, to itself."""
    stderr, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
