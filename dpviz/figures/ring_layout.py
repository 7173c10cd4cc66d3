"""Where the ring's figure puts things: k ranks on a rounded oval, their chunks in a row, arcs between neighbours.

Everything of one step lies in a column one unit wide, the next step in the next column, and the figure shows one column
at a time. Coordinates are fractions of a column's width and of the figure's height.
"""

import functools
import itertools
import math

CELL_HIGH, TRAY, NAME = 0.082, 0.010, 0.050  # heights: of a chunk, of the tray's edge around it, of the name above
EDGE = 0.006  # width of the tray's edge
PARTS = [i / 18 for i in range(19)]  # of a path, where its points lie
ROUND = 2 / 3  # exponent of the oval: below 1 its corners stand out, which leaves room between wide ranks


def cell_width(k: int) -> float:
    """Of one chunk: a rank's row is 0.25 wide at most."""
    return min(0.060, 0.25 / k)


def place(rank: int, k: int) -> tuple[float, float]:
    """The centre of a rank's row of chunks."""
    across, up = 0.5 - cell_width(k) * k / 2 - EDGE, 0.5 - CELL_HIGH / 2 - TRAY - NAME / 2
    x, y = _on_oval(_angle(rank, k), across, up)
    return x, y - NAME / 2


def cells(rank: int, k: int) -> list[float]:
    """The left edges of a rank's chunks."""
    x, _ = place(rank, k)
    wide = cell_width(k)
    return [x + wide * (chunk - k / 2) for chunk in range(k)]


@functools.cache
def path(sender: int, to: int, k: int, *, along: bool = True) -> list[tuple[float, float]]:
    """The points of a path from one rank to another, inside of the oval: along it to a neighbour, or straight."""
    across = 0.5 - cell_width(k) * k - 2 * EDGE - 0.030
    up = 0.5 - CELL_HIGH - 2 * TRAY - NAME - 0.030
    if along and (steps := (to - sender) % k) in (1, k - 1):
        turn = -2 * math.pi / k * (1 if steps == 1 else -1)
        return [_on_oval(_angle(sender, k) + turn * (0.10 + 0.80 * part), across, up) for part in PARTS]
    side = 0.10  # the way back beside the way there
    start, end = (_on_oval(_angle(rank, k) + by, across, up) for rank, by in ((sender, side), (to, -side)))
    return [tuple(a + (b - a) * part for a, b in zip(start, end, strict=True)) for part in PARTS]


@functools.cache
def middle(sender: int, to: int, k: int) -> tuple[float, float]:
    """Half of the way to a neighbour: the point of the path with as much of it before as after."""
    way = path(sender, to, k)
    lengths = [math.dist(*pair) for pair in itertools.pairwise(way)]
    before = list(itertools.accumulate(lengths, initial=0.0))
    return min(zip(before, way, strict=True), key=lambda one: abs(one[0] - before[-1] / 2))[1]


def _angle(rank: int, k: int) -> float:
    """Clockwise from the top; two ranks stand left and right."""
    return (math.pi if k == 2 else math.pi / 2) - 2 * math.pi * rank / k


def _on_oval(angle: float, across: float, up: float) -> tuple[float, float]:
    x, y = math.cos(angle), math.sin(angle)
    return 0.5 + across * math.copysign(abs(x) ** ROUND, x), 0.5 + up * math.copysign(abs(y) ** ROUND, y)
