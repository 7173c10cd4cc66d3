"""What FSDP2 did when, from the marks that it leaves in torch's profiler."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dpviz.measure.profiled import Span

_OF_A_GROUP = re.compile(r"FSDP::(\w+)(?: \(([\w.]+)\))?")  # that of the model itself has no name


def fsdp_spans(events: list[Span]) -> list[tuple[str, str, float, float]]:
    """Return (what, group's name, start_s, end_s) by their starts: "gather", in which the computing thread is in the
    call, "wait", the same, "forward", "backward", "scatter", and "whole", the time in which a group's parameters are
    there.
    """
    marks: dict[str, list[tuple[str, float, float]]] = {}
    for event in events:
        if match := _OF_A_GROUP.fullmatch(event.name):
            what, group = match.groups(default="")
            marks.setdefault(group, []).append((what, event.start_s, event.end_s))
    found = [span for group, of_group in marks.items() for span in _of_group(group, of_group)]
    return sorted(found, key=lambda span: span[2])


def _of_group(group: str, marks: list[tuple[str, float, float]]) -> Iterator[tuple[str, str, float, float]]:
    opened: dict[str, float] = {}
    freed = None  # when the forward was over: there the group was freed, if it is gathered again
    for what, start, end in marks:
        if what == "all_gather":
            if "whole" in opened and freed is not None:
                yield "whole", group, opened.pop("whole"), freed
            yield "gather", group, start, end
            yield "wait", group, start, end
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
