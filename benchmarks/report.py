"""What every part of the benchmarks tells: a line of progress, what is left out and why, numbers with their spread, a
table.
"""

import statistics
import sys


class Report:
    """`left_out` is {what: why}; both kinds of sentence go to stderr as they come."""

    def __init__(self):
        self.left_out = {}

    def progress(self, sentence):
        print(sentence, file=sys.stderr, flush=True)

    def leave_out(self, what, why):
        self.left_out[what] = why
        self.progress(f"{why}: left out")


def spread(values):
    """Return {median, min, max} of some numbers."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratio(one, other):
    """Return the ratio of two medians, each a number or a `spread`, or None where the other is missing."""
    one, other = (value["median"] if isinstance(value, dict) else value for value in (one, other))
    return one / other if other else None


def number(value, digits=1):
    """Return a number, or the median of a `spread`, for a table; - for None."""
    value = value["median"] if isinstance(value, dict) else value
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(head, rows):
    """Return a table of strings."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))
