"""The gradients as arrows: k local ones scatter, their average lands on the whole batch's. Beside it errors and bytes.

A run's `results` hold, for each rank, `local` (n,) its own gradient and `reduced` (n,) what its optimizer gets; rank 0
also `reference` (n,), one process on the whole batch. n counts all parameters. `facts` hold the numbers.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures import tensor_errors, wire_bytes
from dpviz.figures.arrows import arrow_trace, length_and_angle, set_arrows
from dpviz.figures.plane import Plane, angle_degrees, place_labels, view
from dpviz.figures.style import (
    INK,
    LINE,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SMALL,
    axis,
    layout,
    power,
    rank_colour,
    rank_dash,
    rank_text_colour,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

COLOURED = 8  # ranks with a trace of their own; further ranks share a grey one
HALO = "0 0 2px #fff, 0 0 2px #fff, 0 0 3px #fff"
KEY = ("the whole batch", "each rank alone", "the optimizer gets", "1/k each, end to end")
LEFT, MIDDLE, RIGHT = 0.55, 0.575, 0.735  # paper: where the arrows end, captions start, strips start


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 450 px high, as wide as its place."""
    figure = layout(go.Figure(), height=450, margin={"l": 50, "r": 16, "t": 62, "b": 48}, showlegend=True)
    figure.add_trace(arrow_trace("the whole batch", REFERENCE, width=12, head=38, legend="legend"))
    figure.add_trace(arrow_trace("edge", REDUCED_EDGE, width=6, head=20))
    figure.add_trace(arrow_trace("the optimizer gets", REDUCED, width=4, head=17, legend="legend2"))
    for rank in range(COLOURED):
        figure.add_trace(arrow_trace(f"rank {rank}", rank_colour(rank), width=2.4, head=14, dash=rank_dash(rank)))
    figure.add_trace(arrow_trace("other ranks", "#8a8a8a", width=1.5, head=11))
    figure.add_trace(
        go.Scatter(
            name="1/k each, end to end",
            x=[],
            y=[],
            mode="lines+markers",
            hoverinfo="skip",
            legend="legend2",
            line={"color": INK, "width": 1.5, "dash": "dot"},
            marker={"size": [], "color": []},
        )
    )
    figure.add_trace(text_trace("labels", textfont={"size": 14, "weight": 700, "shadow": HALO}))
    figure.add_trace(
        go.Scatter(
            name="each rank alone",
            x=[None],
            y=[None],
            mode="lines",
            legend="legend",
            line={"color": rank_colour(0), "width": 2.4},
        )
    )
    ruled = {"zeroline": True, "zerolinecolor": LINE, "zerolinewidth": 1, "dtick": 0.5}
    figure.update_layout(
        xaxis=axis("across it", domain=[0, LEFT], range=[-1.56, 1.56], **ruled),
        yaxis=axis("along the whole batch's gradient", range=[-0.35, 1.6], scaleanchor="x", constrain="range", **ruled),
        **{name: _legend(y) for name, y in (("legend", 1.095), ("legend2", 1.035))},
    )
    tensor_errors.add_strip(figure, axes="2", x=[RIGHT, 1], y=[0.47, 0.93], left=MIDDLE)
    wire_bytes.add_strip(figure, axes="3", x=[RIGHT, 1], y=[0, 0.2], left=MIDDLE)
    figure.for_each_trace(lambda trace: trace.update(showlegend=trace.name in KEY))
    return figure


def _legend(y: float) -> dict:
    return {
        "orientation": "h",
        "x": 0,
        "xanchor": "left",
        "y": y,
        "yanchor": "bottom",
        "font": {"size": SMALL},
        "itemclick": False,
        "itemdoubleclick": False,
        "entrywidth": 142,
        "bgcolor": "rgba(0,0,0,0)",
    }


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say what it shows."""
    local = np.array([np.asarray(result["local"], dtype=float) for result in run.results])
    reduced = np.array([np.asarray(result["reduced"], dtype=float) for result in run.results])
    reference = np.asarray(run.results[0]["reference"], dtype=float)
    _draw_arrows(figure, local, reduced, reference)
    tensor_errors.draw_strip(figure, run)
    wire_bytes.draw_strip(figure, run)
    return _verdict(run, reduced[0], reference)


def _draw_arrows(figure: go.Figure, local: np.ndarray, reduced: np.ndarray, reference: np.ndarray) -> None:
    traces = {trace.name: trace for trace in figure.data}
    plane = Plane(local, reference)
    points, landed = plane.project(local), plane.project(reduced)
    up = plane.project(reference[None])
    steps = np.vstack([[[0.0, 0.0]], np.cumsum(points / len(points), axis=0)])
    landed = landed[:1] if np.allclose(landed, landed[:1], atol=1e-3) else landed
    x_range, y_range, tick = view(np.vstack([points, landed, up, steps]))
    figure.layout.xaxis.update(range=x_range, dtick=tick)
    figure.layout.yaxis.update(range=y_range, dtick=tick)
    share = "no spread" if not plane.across.any() else f"the ranks' main spread, {100 * plane.share:.0f} % of it"
    figure.layout.xaxis.title.text = f"across it: {share}"

    facts = [_told(f"rank {rank} alone", vector, reference) for rank, vector in enumerate(local)]
    set_arrows(traces["the whole batch"], up, [_told("one process, whole batch", reference, reference)])
    for rank in range(COLOURED):
        set_arrows(traces[f"rank {rank}"], points[rank : rank + 1], facts[rank : rank + 1])
    set_arrows(traces["other ranks"], points[COLOURED:], facts[COLOURED:])
    after = [_told("what the optimizer gets", vector, reference) for vector in reduced[: len(landed)]]
    for name in ("edge", "the optimizer gets"):
        set_arrows(traces[name], landed, after)

    chain, labels = traces["1/k each, end to end"], traces["labels"]
    colours = [rank_colour(rank) if rank < COLOURED else "#8a8a8a" for rank in range(len(points))]
    chain.x, chain.y = _column(steps, 0), _column(steps, 1)
    chain.marker.size, chain.marker.color = [0] + [6] * len(points), [INK, *colours]
    places = place_labels(points, gap=0.06 * (y_range[1] - y_range[0]), avoid=up)
    labels.x, labels.y, labels.text = _column(places, 0), _column(places, 1), [str(rank) for rank in range(len(points))]
    labels.textfont.color = [rank_text_colour(rank) for rank in range(len(points))]


def _told(name: str, vector: np.ndarray, reference: np.ndarray) -> str:
    return length_and_angle(name, vector, reference, reference_is="the whole batch")


def _column(points: np.ndarray, index: int) -> list[float]:
    return [round(float(value), 4) for value in points[:, index]]


def _verdict(run, reduced: np.ndarray, reference: np.ndarray) -> Verdict:
    facts, config = run.facts, run.config
    worst, equal = float(facts["max_rel_error"]), bool(facts["gradients_equal"])
    k, big_k = len(run.results), int(config.get("accumulation_steps", 1))
    samples = int(facts["samples"])
    batch = f"{k} rank{'s' * (k > 1)} × {big_k} micro-batch{'es' * (big_k > 1)}, {samples} samples."
    apart = "" if facts.get("ranks_identical", True) else " The ranks have drifted apart."
    if equal:
        html = f"<b>Equal:</b> largest relative difference {power(worst)}; {batch}{apart}"
        return Verdict(html=html, text=f"gradients equal: yes, {samples} samples", good=not apart)
    ratio = float(np.linalg.norm(reduced) / max(np.linalg.norm(reference), 1e-300))
    if angle_degrees(reduced, reference) < 0.5 and abs(ratio - 1) > 0.01:
        what, short = f"the optimizer gets {ratio:.3g} times the whole batch's gradient", f"{ratio:.3g} times it"
    else:
        what, short = f"largest relative difference {power(worst)}", f"off by {worst:.1g}"
    return Verdict(
        html=f"<b>Different:</b> {what}; {batch}{apart}",
        text=f"gradients equal: no, {short}, {samples} samples",
        good=False,
    )


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title, its environment below."""
    figure = make()
    return titled(figure, draw(figure, run), run)
