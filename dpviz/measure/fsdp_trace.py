"""What FSDP2 did when, from the marks that it leaves in torch's profiler, on this host's monotonic clock."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

from torch.profiler import ProfilerActivity, profile, record_function

from dpviz.measure.trace import MARK, quietly

_OF_A_GROUP = re.compile(r"FSDP::(\w+)(?: \(([\w.]+)\))?")  # that of the model itself has no name


@contextlib.contextmanager
def fsdp_spans() -> Iterator[list[tuple[str, str, float, float]]]:
    """Yield a list that holds (what, group's name, start_s, end_s) once the block has ended: "gather", "forward",
    "backward", "scatter", and "whole", the time in which a group's parameters are there.
    """
    spans: list[tuple[str, str, float, float]] = []
    profiler = profile(activities=[ProfilerActivity.CPU])
    with quietly():
        profiler.start()
    with record_function(MARK):
        begun = time.perf_counter()
    try:
        yield spans
    finally:
        with quietly():
            profiler.stop()
    events = profiler.profiler.kineto_results.events()
    mark = next(event.start_ns() for event in events if event.name() == MARK)
    found = sorted(
        (begun + (event.start_ns() - mark) / 1e9, begun + (event.end_ns() - mark) / 1e9, *match.groups(default=""))
        for event in events
        if (match := _OF_A_GROUP.fullmatch(event.name()))
    )
    for group in dict.fromkeys(group for *_, group in found):
        spans += _of_group(group, [(what, start, end) for start, end, what, of in found if of == group])
    spans.sort(key=lambda span: span[2])


def _of_group(group: str, marks: list[tuple[str, float, float]]) -> Iterator[tuple[str, str, float, float]]:
    opened: dict[str, float] = {}
    freed = None  # when the forward was over: there the group was freed, if it is gathered again
    for what, start, end in marks:
        if what == "all_gather":
            if "whole" in opened and freed is not None:
                yield "whole", group, opened.pop("whole"), freed
            yield "gather", group, start, end
        elif what == "all_gather_copy_out":
            opened["whole"] = end
        elif what in ("pre_forward", "pre_backward"):
            opened[what] = end
        elif what == "post_forward":
            yield "forward", group, opened.pop("pre_forward"), start
            freed = end
        elif what == "post_backward_accumulate" and "pre_backward" in opened:
            yield "backward", group, opened.pop("pre_backward"), start
        elif what == "post_backward_reshard" and "whole" in opened:
            yield "whole", group, opened.pop("whole"), end
        elif what == "post_backward_reduce":
            yield "scatter", group, start, end
