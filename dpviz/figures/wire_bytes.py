"""Bytes each rank sent, beside 2(k-1)/k · S and gloo's framing: one strip, alone or inside another figure."""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import (
    REFERENCE,
    axis,
    bytes_text,
    caption,
    layout,
    rank_colour,
    rank_pattern,
    soft,
    step_above,
)
from dpviz.figures.verdict import Verdict, titled

WIDTH = 0.72  # of a bar, in ranks


def add_strip(figure: go.Figure, *, axes: str, x: list[float], y: list[float], left: float) -> None:
    """Add the strip's traces, axes and caption to `figure`.

    axes: the number of its axis pair ("3" makes xaxis3 and yaxis3, "" xaxis and yaxis)
    x, y: its domain; left: where its caption starts (paper)
    """
    where = {"xaxis": f"x{axes}", "yaxis": f"y{axes}"}
    figure.add_trace(
        go.Bar(
            name="sent",
            x=[],
            y=[],
            width=WIDTH,
            marker={"color": [], "line": {"width": 0}},
            hovertext=[],
            hoverinfo="text",
            textposition="none",
            **where,
        )
    )
    for name, dash in (("formula", "dash"), ("formula and framing", "dot")):
        line = {"color": REFERENCE, "width": 1.5, "dash": dash}
        figure.add_trace(
            go.Scatter(name=name, x=[], y=[], mode="lines", line=line, hovertext=[], hoverinfo="text", **where)
        )
    figure.update_layout(
        {
            f"xaxis{axes}": axis("rank", domain=x, anchor=f"y{axes}", dtick=1, range=[-0.6, 3.6], showgrid=False),
            f"yaxis{axes}": axis(domain=y, anchor=f"x{axes}", range=[0, 1], tickvals=[0, 1], ticktext=["0", "1 B"]),
        }
    )
    figure.add_annotation(caption("", x=left, y=y[1] + 0.035, name="bytes"))


def draw_strip(figure: go.Figure, run) -> None:
    """Fill the strip from the facts wire_bytes, wire_bytes_predicted, framing_bytes_predicted and gradient_bytes."""
    k, sent, total, framing = _bytes(run)
    traces = {trace.name: trace for trace in figure.data}
    ranks = list(range(k))
    bars = traces["sent"]
    bars.x, bars.y, bars.marker.color = ranks, sent.tolist(), [rank_colour(rank) for rank in ranks]
    bars.marker.pattern.shape = [rank_pattern(rank) for rank in ranks]
    how = run.environment.wire.partition(":")[0]
    bars.hovertext = [f"rank {rank} sent {int(sent[rank]):,} B ({how})" for rank in ranks]
    for name, level, words in (
        ("formula", total - framing, "formula without framing"),
        ("formula and framing", total, "formula and gloo's framing"),
    ):
        trace = traces[name]
        trace.x = [edge for rank in ranks for edge in (rank - 0.5, rank + 0.5)]
        trace.y = np.repeat(level, 2).tolist()
        trace.hovertext = [f"{words}: {int(level[rank]):,} B" for rank in ranks for _ in range(2)]
    number = bars.xaxis[1:]
    top = step_above(max(sent.max(), total.max()) * 1.02, (1, 1.5, 2, 3, 4, 5, 7))
    figure.layout[f"xaxis{number}"].update(range=[-0.6, max(k, 4) - 0.4], dtick=1 if k <= 10 else 4)
    figure.layout[f"yaxis{number}"].update(range=[0, top], tickvals=[0, top], ticktext=["0", bytes_text(top)])
    note = next(note for note in figure.layout.annotations if note.name == "bytes")
    note.text = "<br>".join(_captions(run))


def _bytes(run) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """k, and for each rank the bytes sent, predicted, and how many of the predicted ones are framing."""
    k = len(run.results)
    names = ("wire_bytes", "wire_bytes_predicted", "framing_bytes_predicted")
    return k, *(np.broadcast_to(np.asarray(run.facts[name], dtype=float), (k,)) for name in names)


def _captions(run) -> tuple[str, str]:
    """What was sent and what the formula says, as two short lines."""
    k, sent, total, framing = _bytes(run)
    if not total.any() and not sent.any():
        return "<b>Nothing is sent</b>", soft("one rank has no one to send to" if k == 1 else "no all-reduce")
    low, high = bytes_text(sent.min()), bytes_text(sent.max())
    each = high if low == high else f"{_without_unit(low, high)} to {high}"
    all_reduced = 2 * (k - 1) / k * run.facts["gradient_bytes"] if run.facts["all_reduces"] else 0
    rest = float((total - framing).max() - all_reduced)
    kind, more = ("buffers, framing", rest) if rest > 0.005 * total.max() else ("framing", 0)
    formula, beside = bytes_text(all_reduced), bytes_text(more + framing.max())
    return f"<b>Each rank sent {each}</b>", soft(f"2(k−1)/k·S {_without_unit(formula, beside)} + {kind} {beside}")


def _without_unit(text: str, other: str) -> str:
    """'63.8 kB' as '63.8' where `other` has the same unit."""
    number, unit = text.split()
    return number if other.endswith(f" {unit}") else text


def make() -> go.Figure:
    """The strip as a figure of its own."""
    figure = layout(go.Figure(), height=300, margin={"t": 60})
    add_strip(figure, axes="", x=[0, 1], y=[0, 1], left=0)
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`; compare what was sent with what is predicted, framing included."""
    draw_strip(figure, run)
    _, sent, total, _ = _bytes(run)
    if not total.any():
        return Verdict(html="<b>Nothing is sent.</b>", text="0 B sent", good=not sent.any())
    off = float(np.abs(sent - total).max() / total.max())
    close = off < 0.02
    answer = "As predicted" if close else "Not as predicted"
    html = (
        f"<b>{answer}:</b> a rank sends at most {bytes_text(sent.max())}, the prediction is {bytes_text(total.max())}."
    )
    return Verdict(html=html, text=f"bytes as predicted: {'yes' if close else 'no'}", good=close)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
