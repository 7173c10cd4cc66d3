"""Unequal ranks: what a token of each rank weighs under each rule, the gradients that come of it, and the bias.

A run's `results` hold, for each rank, `local` {rule: (n,)} its own gradient and `gradients` {rule: (n,)} after the
all-reduce; rank 0 also `reference_gradient` (n,), one process with every token. `facts` hold the numbers.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.arrows import arrow_trace, length_and_angle, set_arrows
from dpviz.figures.plane import Plane, place_labels, view
from dpviz.figures.style import (
    INK,
    LINE,
    NO,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SOFT_INK,
    axis,
    caption,
    layout,
    power,
    power_of_ten,
    rank_colour,
    rank_dash,
    rank_text_colour,
    soft,
    step_above,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled
from dpviz.figures.weight_blocks import HALO, add_blocks, draw_blocks, percent
from dpviz.theory.unequal import error_of_rank_means, imbalance

COLOURED = 8  # ranks with an arrow of their own; further ranks share a grey trace
BLOCKS, RIGHT = 0.52, 0.615  # paper: where the blocks end, where arrows and curve begin
WIDEST = 1000  # of the imbalance axis
NAIVE, WEIGHTED, ALL = "rank means", "sum · k/N", "one process"


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 460 px high, as wide as its place."""
    figure = layout(go.Figure(), height=460, margin={"l": 56, "r": 16, "t": 56, "b": 70})
    add_blocks(figure, x=[0, BLOCKS])
    _add_arrows(figure)
    _add_curve(figure)
    return figure


def _add_arrows(figure: go.Figure) -> None:
    figure.add_trace(arrow_trace(ALL, REFERENCE, width=11, head=34, axes="2"))
    figure.add_trace(arrow_trace("edge", REDUCED_EDGE, width=7.5, head=22, axes="2"))
    figure.add_trace(arrow_trace(WEIGHTED, REDUCED, width=5.5, head=19, axes="2"))
    for rank in range(COLOURED):
        trace = arrow_trace(f"rank {rank}", rank_colour(rank), width=2, head=12, dash=rank_dash(rank), axes="2")
        figure.add_trace(trace)
    figure.add_trace(arrow_trace("other ranks", "#8a8a8a", width=1.5, head=11, axes="2"))
    figure.add_trace(arrow_trace(NAIVE, NO, width=3, head=17, dash="dot", axes="2"))
    figure.add_trace(text_trace("labels", xaxis="x2", yaxis="y2", textfont={"size": 13, "weight": 700, "shadow": HALO}))
    plain = {"zeroline": True, "zerolinecolor": LINE, "zerolinewidth": 1, "dtick": 0.5, "showticklabels": False}
    across = axis(domain=[RIGHT, 1], anchor="y2", range=[-1.56, 1.56], **plain)
    up = axis(domain=[0.45, 1], anchor="x2", range=[-0.35, 1.6], scaleanchor="x2", constrain="range", **plain)
    figure.update_layout(xaxis2=across, yaxis2=up)
    colours = ((REFERENCE, "━", "true mean"), ("#b8a400", "━", WEIGHTED), (NO, "┅", NAIVE))
    key = "&nbsp; ".join(f"<span style='color:{colour}'><b>{line}</b></span> {name}" for colour, line, name in colours)
    words = f"<b>Gradients</b><br>{soft(key)}"
    figure.add_annotation(caption(words, x=RIGHT, y=1.015))


def _add_curve(figure: go.Figure) -> None:
    where = {"xaxis": "x3", "yaxis": "y3"}
    line = {"color": NO, "width": 1.5, "dash": "dash"}
    figure.add_trace(go.Scatter(name="modelled", x=[], y=[], mode="lines", line=line, hoverinfo="skip", **where))
    for name, symbol, colour in ((f"{NAIVE}, measured", "circle", NO), (f"{WEIGHTED}, measured", "square", REDUCED)):
        marker = {"size": 11, "symbol": symbol, "color": colour, "line": {"color": REDUCED_EDGE, "width": 1.5}}
        more = {"hovertext": [], "hoverinfo": "text", "cliponaxis": False} | where
        figure.add_trace(go.Scatter(name=name, x=[], y=[], mode="markers", marker=marker, **more))
    ticks = {"tickvals": [1, 10, 100, 1000], "ticktext": ["1", "10", "100", "1000"]}
    figure.update_layout(
        xaxis3=axis("tokens, longest ÷ shortest rank", domain=[RIGHT, 1], anchor="y3", type="log")
        | {"range": [-0.06, np.log10(WIDEST)]}
        | ticks,
        yaxis3=axis(domain=[0, 0.24], anchor="x3", range=[0, 1], tickformat=".0%", zeroline=True),
    )
    words = f"<b>How far off the gradient is</b><br>{soft('dashed: modelled from the rank means')}"
    figure.add_annotation(caption(words, x=RIGHT, y=0.255))


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say what it shows."""
    draw_blocks(figure, run)
    _draw_arrows(figure, run)
    _draw_curve(figure, run)
    return _verdict(run)


def _draw_arrows(figure: go.Figure, run) -> None:
    local = np.array([np.asarray(result["local"]["mean_of_rank_means"], dtype=float) for result in run.results])
    local = np.nan_to_num(local)
    after = {name: np.asarray(vector, dtype=float) for name, vector in run.results[0]["gradients"].items()}
    naive, weighted = (np.nan_to_num(after[name]) for name in ("mean_of_rank_means", "weighted"))
    reference = np.asarray(run.results[0]["reference_gradient"], dtype=float)
    traces = {trace.name: trace for trace in figure.data}
    plane = Plane(local, reference)
    points, arrows = plane.project(local), plane.project(np.array([reference, weighted, naive]))
    for rank in range(COLOURED):
        texts = [length_and_angle(f"rank {rank} alone", local[rank], reference)] if rank < len(local) else []
        set_arrows(traces[f"rank {rank}"], points[rank : rank + 1], texts)
    set_arrows(traces["other ranks"], points[COLOURED:], ["a further rank alone"] * len(points[COLOURED:]))
    for row, (name, vector) in enumerate(((ALL, reference), (WEIGHTED, weighted), (NAIVE, naive))):
        set_arrows(traces[name], arrows[row : row + 1], [length_and_angle(name, vector, reference)])
    set_arrows(traces["edge"], arrows[1:2], [length_and_angle(WEIGHTED, weighted, reference)])
    x_range, y_range, tick = view(np.vstack([points, arrows]), aspect=1.75)
    figure.layout.xaxis2.update(range=x_range, dtick=tick)
    figure.layout.yaxis2.update(range=y_range, dtick=tick)
    places = place_labels(points, gap=0.1 * (y_range[1] - y_range[0]), avoid=arrows)
    labels = traces["labels"]
    labels.x, labels.y = ([round(float(value), 4) for value in column] for column in places.T)
    labels.text = [str(rank) for rank in range(len(points))]
    labels.textfont.color = [rank_text_colour(rank) for rank in range(len(points))]


def _draw_curve(figure: go.Figure, run) -> None:
    traces = {trace.name: trace for trace in figure.data}
    of_rank = [sum(row) for row in run.facts["tokens_in_loss"]]
    x = min(imbalance(of_rank), WIDEST)
    errors = {NAIVE: run.facts["gradient_error_naive"], WEIGHTED: run.facts["gradient_error_weighted"]}
    top = step_above(max(2 * float(np.nan_to_num(errors[NAIVE])), 0.1))  # the measured points, not the curve's far end
    traces["modelled"].x, traces["modelled"].y = _modelled(run, of_rank)
    for name, error in errors.items():
        trace = traces[f"{name}, measured"]
        drawn = int(np.isfinite(error))
        trace.x, trace.y = [round(x, 4)] * drawn, [float(f"{error:.4g}") if error > 1e-9 else 0.0] * drawn
        trace.hovertext = [f"<b>{name}</b>, measured<br>off by {percent(error) if error > 1e-4 else power(error)}"]
    figure.layout.yaxis3.update(range=[0, top], tickvals=[0, top / 2, top])


def _modelled(run, of_rank: list[int]) -> tuple[list[float], list[float]]:
    """The curve through the measured point, from equal ranks to an imbalance of 1000; none for sequences."""
    if run.config["objective"] == "sequence" or min(of_rank) == 0 or max(of_rank) == min(of_rank):
        return [], []
    means = np.array([np.asarray(result["local"]["mean_of_rank_means"], dtype=float) for result in run.results])
    at = np.geomspace(1, WIDEST, 31)
    tilts = np.log(at) / np.log(max(of_rank) / min(of_rank))
    return [float(f"{x:.4g}") for x in at], [float(f"{error_of_rank_means(of_rank, means, t):.4g}") for t in tilts]


def _verdict(run) -> Verdict:
    facts = run.facts
    error, bias, right = facts["gradient_error_naive"], facts["relative_bias"], facts["gradient_error_weighted"]
    tolerance = facts["tolerance"]
    summed = "equal" if right < tolerance else f"off by {percent(right)}"
    if not np.isfinite(bias):
        html = f"<b>Not a number:</b> a rank without a token has no mean. Sum · k/N is {summed} to one process."
        return Verdict(html=html, text=f"rank means: loss not a number; sum·k/N: {summed}", good=False)
    if error < tolerance:
        html = f"<b>Fair:</b> the mean of the rank means is the true mean, to {power_of_ten(max(error, 1e-16))}."
        return Verdict(html=html, text=f"rank means: equal; sum·k/N: {summed}", good=True)
    loss = f"{percent(abs(bias))} too {'high' if bias > 0 else 'low'}"
    html = f"<b>Biased:</b> rank means: gradient {percent(error)} off, loss {loss}; sum · k/N: {summed}."
    text = f"rank means: gradient {percent(error)} off, loss {loss}; sum·k/N: {summed}"
    return Verdict(html=html, text=text, good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)


def bias(runs) -> go.Figure:
    """The measured gradient errors of several runs against their imbalance, beside the modelled curve; 340 px high."""
    figure = layout(go.Figure(), height=340, margin={"l": 64, "t": 76, "r": 96})
    at = [imbalance([sum(row) for row in run.facts["tokens_in_loss"]]) for run in runs]
    largest = max(float(run.facts["gradient_error_naive"]) for run in runs)
    middle = runs[len(runs) // 2]
    x, y = _modelled(middle, [sum(row) for row in middle.facts["tokens_in_loss"]])
    dashed = {"color": NO, "width": 1.5, "dash": "dash"}
    figure.add_trace(go.Scatter(name="modelled", x=x, y=y, mode="lines", line=dashed, hoverinfo="skip"))
    for name, fact, symbol, colour in (
        (NAIVE, "gradient_error_naive", "circle", NO),
        (WEIGHTED, "gradient_error_weighted", "square", REDUCED),
    ):
        errors = [float(run.facts[fact]) for run in runs]
        figure.add_trace(
            go.Scatter(
                name=name,
                x=[float(f"{value:.4g}") for value in at],
                y=[round(error, 4) for error in errors],
                mode="lines+markers+text",
                text=[*[""] * (len(runs) - 1), f"  {name}"],
                textposition="middle right",
                textfont={"size": 13, "color": INK},
                cliponaxis=False,
                line={"color": NO if name == NAIVE else REDUCED_EDGE, "width": 2},
                marker={"size": 10, "symbol": symbol, "color": colour, "line": {"color": REDUCED_EDGE, "width": 1.5}},
                hovertext=[
                    f"<b>{name}</b><br>{value:.3g} times as many tokens: off by {power(error)}"
                    for value, error in zip(at, errors, strict=True)
                ],
                hoverinfo="text",
            )
        )
    figure.update_layout(
        xaxis=axis("tokens, longest ÷ shortest rank", type="log", range=[-0.03, np.log10(max(at)) + 0.05])
        | {"tickvals": [1, 3, 10, 30, 100, 300, 1000], "ticktext": ["1", "3", "10", "30", "100", "300", "1000"]},
        yaxis=axis("error of the gradient", range=[0, step_above(1.05 * largest, (1, 1.5, 2, 3, 5))])
        | {"tickformat": ".0%", "zeroline": True},
        title={
            "text": "<b>The further apart the ranks, the larger the error of rank means</b>",
            "x": 0.01,
            "xanchor": "left",
            "font": {"size": 16},
            "subtitle": {
                "text": f"{middle.environment.line()}; solid: measured, dashed: modelled from one run's rank means",
                "font": {"size": 12, "color": SOFT_INK},
            },
        },
    )
    return figure
