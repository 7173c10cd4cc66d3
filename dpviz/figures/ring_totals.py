"""Who sent how much to whom: a matrix of ranks whose cells fill, and each rank's total beside it, against a ring's.

The part of the ring's figure that is the same for every algorithm. What changes is drawn in the ring's columns, one a
step (x2, x3); the empty cells and the dashed line stay (x6, x7).
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.ring_course import Course
from dpviz.figures.style import (
    GRID,
    INK,
    REFERENCE,
    SMALL,
    axis,
    binary_text,
    caption,
    rank_colour,
    rank_pattern,
    rank_text_colour,
    soft,
    step_above,
)

MATRIX, TOTALS = [0.635, 0.815], [0.84, 1]
LONG = 0.68  # of a column: the longest bar; the numbers stand at the column's end
HIGH, ITSELF = 0.84, "#fafafa"  # of a cell; of a rank with itself


def add(figure: go.Figure) -> None:
    """Add the traces, axes and captions."""
    for name, xaxis in (("cells", "x6"), ("sent to", "x2"), ("total", "x3")):
        figure.add_trace(
            go.Bar(
                name=name,
                x=[],
                y=[],
                base=[],
                width=[] if name != "total" else 0.55,
                orientation="h" if name == "total" else "v",
                marker={"color": [], "line": {"width": 0}},
                textposition="none",
                hovertext=[],
                hoverinfo="text",
                xaxis=xaxis,
                yaxis="y2",
            )
        )
    where = {"yaxis": "y2", "hoverinfo": "skip", "x": [], "y": []}
    line = {"color": REFERENCE, "width": 1.5, "dash": "dash"}
    figure.add_trace(go.Scatter(name="a ring's", mode="lines", line=line, xaxis="x7", **where))
    mark = {"symbol": "diamond", "size": 9, "color": REFERENCE, "line": {"color": "#ffffff", "width": 1.5}}
    kernel = {"mode": "markers", "marker": mark, "hovertext": [], **where, "hoverinfo": "text"}
    figure.add_trace(go.Scatter(name="kernel", xaxis="x7", **kernel))
    font = {"size": SMALL, "color": INK}
    more = {"mode": "text", "text": [], "textposition": "middle left", "textfont": font}
    figure.add_trace(go.Scatter(name="numbers", xaxis="x3", **more, **where))
    plain = {"anchor": "y2", "range": [0, 1], "showgrid": False, "ticks": "", "showline": False}
    moving = {"matches": "x", "showticklabels": False, **plain}
    figure.update_layout(
        xaxis6=axis("to rank", domain=MATRIX, **plain),
        xaxis2=axis(domain=MATRIX, overlaying="x6", **moving),
        xaxis3=axis(domain=TOTALS, **moving),
        xaxis7=axis("S", domain=TOTALS, tickangle=0, overlaying="x3", **plain),
        yaxis2=axis("from rank", **plain | {"anchor": "x6", "domain": [0.02, 1], "range": [3.5, -0.5]}),
    )
    figure.add_annotation(caption("", x=MATRIX[0], y=1.025, name="totals"))


def draw(figure: go.Figure, run, story: Course, first: int) -> None:
    """Fill them for each step of `story`, whose columns begin at `first`."""
    k, traces = story.k, {trace.name: trace for trace in figure.data}
    halves, law = (2, "2(k−1)/k") if run.config["collective"] == "all_reduce" else (1, "(k−1)/k")
    goal = halves * (k - 1) / k
    most = step_above(max(2.0, 0.98 * float(story.totals.max() / story.payload)), (1, 2, 3, 4, 5, 6, 7, 8))
    _draw_matrix(traces, story, first)
    _draw_totals(traces, story, first, LONG / most)
    counted = story.counted.sum(axis=1).tolist() if story.watched and story.counted is not None else []
    marks = traces["kernel"]
    marks.x, marks.y = [round(LONG * share / most, 4) for share in counted], list(range(len(counted)))
    size = binary_text(max(run.facts["payload_bytes"]))
    marks.hovertext = [f"the kernel counted {share:.4f} S in one call with S = {size}" for share in counted]
    dashed, x = traces["a ring's"], round(LONG * goal / most, 4)
    dashed.x, dashed.y = [x, x], [-0.5, k - 0.5]
    names = [f"<span style='color:{rank_text_colour(rank)}'><b>{rank}</b></span>" for rank in range(k)]
    figure.layout.xaxis6.update(tickvals=[round((rank + 0.5) / k, 4) for rank in range(k)], ticktext=names)
    figure.layout.yaxis2.update(range=[k - 0.5, -0.5], tickvals=list(range(k)), ticktext=names)
    ticks = [0, most / 2, most]
    figure.layout.xaxis7.update(tickvals=[LONG * tick / most for tick in ticks], ticktext=[f"{t:g}" for t in ticks])
    so_far, size = "so far" if story.watched else "in one call", soft(f"S = {binary_text(story.payload)}")
    note = next(note for note in figure.layout.annotations if note.name == "totals")
    key = f"dashed: ring, {law} = {goal:.2f} S" + ("; ◆ kernel" if counted else "")
    note.text = f"<b>Sent {so_far}</b> {size}<br>{soft(key)}"


def _draw_matrix(traces: dict, story: Course, first: int) -> None:
    k, sent = story.k, story.sent / story.payload
    full = max(float(sent.max()), 1e-12)
    cells, filled = traces["cells"], traces["sent to"]
    pairs = [(a, b) for a in range(k) for b in range(k)]
    _set_cells(cells, [(0, a, b, 1.0) for a, b in pairs], k)
    cells.marker.color = [GRID if a != b else ITSELF for a, b in pairs]
    told = {pair: _told(story, *pair) for pair in pairs}
    cells.hovertext = list(told.values())
    some = [(*place, float(sent[tuple(place)])) for place in np.argwhere(sent > 0).tolist()]
    _set_cells(filled, [(first + number, a, b, amount / full) for number, a, b, amount in some], k)
    filled.marker.color = [rank_colour(a) for _, a, _, _ in some]
    filled.hovertext = [f"{told[a, b]}<br>{amount:.3f} S so far" for _, a, b, amount in some]


def _told(story: Course, a: int, b: int) -> str:
    if a == b:
        return f"rank {a} sends itself nothing"
    counted = "" if story.counted is None else f"<br>{story.counted[a, b]:.4f} S in all, as the kernel counts"
    return f"<b>rank {a} → rank {b}</b>{counted}"


def _set_cells(trace: go.Bar, cells: list[tuple], k: int) -> None:
    """(column, row, column of the matrix, part that is filled) each, filled from below; rows count downwards."""
    trace.x = [round(column + (b + 0.5) / k, 4) for column, _, b, _ in cells]
    trace.base = [round(a + HIGH / 2, 4) for _, a, _, _ in cells]
    trace.y = [round(-HIGH * part, 4) for _, _, _, part in cells]
    trace.width = [round(HIGH / k, 4)] * len(cells)


def _draw_totals(traces: dict, story: Course, first: int, length: float) -> None:
    total, numbers = traces["total"], traces["numbers"]
    rows = [(first + number, rank, int(sent)) for (number, rank), sent in np.ndenumerate(story.totals)]
    shares = [sent / story.payload for _, _, sent in rows]
    total.y, total.base = [rank for _, rank, _ in rows], [column for column, _, _ in rows]
    total.x = [round(length * share, 4) for share in shares]
    total.marker.color = [rank_colour(rank) for _, rank, _ in rows]
    total.marker.pattern.shape = [rank_pattern(rank) for _, rank, _ in rows]
    total.hovertext = [
        f"<b>rank {rank}</b> has sent {share:.3f} S = {sent:,} B"
        for (_, rank, sent), share in zip(rows, shares, strict=True)
    ]
    numbers.x, numbers.y = [round(column + 0.97, 2) for column, _, _ in rows], [rank for _, rank, _ in rows]
    numbers.text = [f"{share:.2f}" for share in shares]
