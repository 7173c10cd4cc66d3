"""What the times of several ranks say together, once they are on one clock.

Marks are a dict of when an iteration's parts began on one rank: data, forward, backward, and done. A bucket is a
dict of the fields of `trace.Bucket`.
"""

from __future__ import annotations

from dpviz.records import Event


def shifted(times, seconds):
    """Return the times in a dict moved by so many seconds; `index` and `bytes` are none."""
    return {name: value if name in ("index", "bytes") else value + seconds for name, value in times.items()}


def backward_s(of_ranks):
    """Seconds from the latest start of backward to the last rank's end of it."""
    return max(marks["done"] for marks in of_ranks) - max(marks["backward"] for marks in of_ranks)


def in_flight_s(of_ranks):
    """Seconds in which at least one bucket is in flight: all ranks have begun with it, and not all have ended."""
    return covered_s(
        (max(b["start_s"] for b in one), max(b["end_s"] for b in one)) for one in zip(*of_ranks, strict=True)
    )


def covered_s(spans):
    """Seconds in which at least one of these (start, end) goes on."""
    total, until = 0.0, -float("inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def both_s(some, others):
    """Seconds in which one of `some` and one of `others` go on at once."""
    return covered_s((max(a, c), min(b, d)) for a, b in some for c, d in others if max(a, c) < min(b, d))


def lateness_s(of_ranks, rank):
    handed = [buckets[0]["handed_s"] for buckets in of_ranks if buckets]
    return handed[rank] - min(handed) if handed else 0.0


def events(marks, buckets):
    """Return the timeline of one rank: what it computes, and of each bucket how long it waits and how long it is
    sent.
    """
    ends = {"data": "forward", "forward": "backward", "backward": "done"}
    events = [Event(name=name, start_s=marks[name], end_s=marks[end], lane=name) for name, end in ends.items()]
    for bucket in buckets:
        lane = f"bucket {bucket['index']}"
        events += [
            Event(name="wait", start_s=bucket["ready_s"], end_s=bucket["start_s"], lane=lane),
            Event(name="send", start_s=bucket["start_s"], end_s=bucket["end_s"], lane=lane),
        ]
    return events
