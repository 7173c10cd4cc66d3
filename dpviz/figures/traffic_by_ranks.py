"""Bytes that the busiest rank sends, over the payload, against the number of ranks: measured points on the formulas'
curves.

A run of `all_reduce` is one point, that of its largest payload, where headers weigh least. Runs of the same algorithm
and collective look alike.
"""

import math

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import (
    RANK_COLOURS,
    REFERENCE,
    apart,
    axis,
    binary_text,
    caption,
    layout,
    rank_text_colour,
    soft,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

SERIES = {  # algorithm and collective: symbol, the same as text, number of the colour
    ("naive", "all_reduce"): ("triangle-up", "▲", 3),
    ("gloo", "all_reduce"): ("circle", "●", 0),
    ("ring", "all_reduce"): ("square-open", "□", 1),
    ("gloo", "reduce_scatter"): ("diamond", "◆", 2),
    ("ring", "reduce_scatter"): ("diamond-open", "◇", 5),
    ("gloo", "all_gather"): ("cross", "✚", 4),
    ("ring", "all_gather"): ("x", "×", 4),
}
CURVES = {"k − 1": lambda k: k - 1, "2(k−1)/k": lambda k: 2 * (k - 1) / k, "(k−1)/k": lambda k: (k - 1) / k}
LAST, NAMES = 8.6, (math.log10(0.46), math.log10(7.6))  # where names stand: right of this, between these
KEY = "points: measured; dashed: formula"
APART = 0.13  # ranks: points that would lie on each other stand side by side


def make() -> go.Figure:
    """The figure with every trace in it and nothing measured drawn: 420 px high."""
    figure = layout(go.Figure(), height=420, margin={"l": 58, "r": 168, "t": 58, "b": 48})
    for name, formula in CURVES.items():
        ks = [2 + 0.1 * i for i in range(61)]
        figure.add_trace(
            go.Scatter(
                name=name,
                x=[round(k, 1) for k in ks],
                y=[round(formula(k), 4) for k in ks],
                mode="lines",
                line={"color": REFERENCE, "width": 1.5, "dash": "dash"},
                hoverinfo="skip",
            )
        )
    for key, (symbol, _, colour) in SERIES.items():
        line = {"color": RANK_COLOURS[colour], "width": 1.5}
        figure.add_trace(
            go.Scatter(
                name=_named(*key),
                x=[],
                y=[],
                mode="markers",
                marker={"symbol": symbol, "size": 9, "color": RANK_COLOURS[colour], "line": line},
                hovertext=[],
                hoverinfo="text",
                cliponaxis=False,
            )
        )
    figure.add_trace(text_trace("labels", textposition="middle right"))
    ticks = [0.5, 1, 2, 4, 8]
    figure.update_layout(
        xaxis=axis("ranks k", range=[1.5, LAST], dtick=1, tick0=2, showgrid=False),
        yaxis=axis(
            "bytes sent by the busiest rank ÷ S",
            type="log",
            range=[math.log10(0.42), math.log10(8.4)],
            tickvals=ticks,
            ticktext=[f"{tick:g}" for tick in ticks],
        ),
        annotations=[
            caption(f"<b>Bytes over the payload</b><br>{soft(KEY)}", x=0, y=1.025),
            *(
                caption(soft(name), x=x, y=math.log10(CURVES[name](x)), xref="x", yref="y") | more
                for name, x, more in (
                    ("k − 1", 4.6, {"xanchor": "right"}),
                    ("2(k−1)/k", 6.5, {"xanchor": "center", "yanchor": "top", "yshift": -6}),
                    ("(k−1)/k", 6.5, {"xanchor": "center", "yanchor": "top", "yshift": -6}),
                )
            ),
        ],
    )
    return figure


def _named(algorithm: str, collective: str) -> str:
    who = {"gloo": "gloo's", "ring": "ring", "naive": "naive"}[algorithm]
    return f"{who} {collective.replace('_', '-')}"


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, or a list of runs, and say how many payloads a rank sends."""
    runs = [one for one in (run if isinstance(run, list | tuple) else [run]) if one.environment.world_size > 1]
    traces = {trace.name: trace for trace in figure.data}
    groups = {key: [] for key in SERIES}
    for one in runs:
        groups[one.config["algorithm"], one.config["collective"]].append(one)
    drawn = [key for key, group in groups.items() if group]
    for key, group in groups.items():
        trace, group = traces[_named(*key)], sorted(group, key=lambda one: one.environment.world_size)
        aside = APART * (drawn.index(key) - (len(drawn) - 1) / 2) if group else 0
        trace.x = [round(one.environment.world_size + aside, 3) for one in group]
        trace.y = [round(_sent(one), 4) for one in group]
        trace.hovertext = [_told(one) for one in group]
    _draw_labels(traces["labels"], {key: groups[key] for key in drawn})
    return _verdict(groups)


def _sent(run) -> float:
    return float(run.facts["bytes_over_payload"][_largest(run)])


def _largest(run) -> int:
    return int(np.argmax(run.facts["payload_bytes"]))


def _told(run) -> str:
    size = binary_text(run.facts["payload_bytes"][_largest(run)])
    how, formula = run.environment.wire.partition(":")[0], run.facts["formula_bytes_over_payload"][_largest(run)]
    name = _named(run.config["algorithm"], run.config["collective"])
    sent = f"{_sent(run):.4f} S, formula {formula:.4f} S"
    return f"<b>{name}, {run.environment.world_size} ranks</b><br>{sent}<br>S = {size}, {how}"


def _draw_labels(trace: go.Scatter, groups: dict) -> None:
    """Names beside the last point of each series, as close to it as the others allow."""
    ends = [math.log10(_sent(max(group, key=lambda one: one.environment.world_size))) for group in groups.values()]
    order = sorted(range(len(ends)), key=lambda i: (ends[i], -i))
    nudged = [ends[i] + 1e-6 * order.index(i) for i in range(len(ends))]
    trace.x, trace.y = (
        [LAST] * len(ends),
        [float(f"{10**y:.4g}") for y in apart(nudged, gap=0.068, low=NAMES[0], high=NAMES[1])],
    )
    trace.text = [f"{SERIES[key][1]} {_named(*key)}" for key in groups]
    trace.textfont.color = [rank_text_colour(SERIES[key][2]) for key in groups]


def _verdict(groups: dict) -> Verdict:
    """About the all-reduces that are a ring; then what gloo's reduce-scatter does."""
    runs = [run for group in groups.values() for run in group]
    if not runs:
        return Verdict(html="<b>Nothing is sent:</b> one rank has no one to send to.", text="0 S sent")
    off = [run for run in runs if abs(_sent(run) / run.facts["bytes_over_payload_predicted"][_largest(run)] - 1) > 0.02]
    told = sorted(
        groups["gloo", "all_reduce"] or groups["ring", "all_reduce"], key=lambda one: one.environment.world_size
    )
    told = told or runs
    few, many = ((one.environment.world_size, _sent(one)) for one in (told[0], told[-1]))
    if off:
        name = _named(off[0].config["algorithm"], off[0].config["collective"])
        html = f"<b>Not as predicted:</b> {name} sends {_sent(off[0]):.2f} S on {off[0].environment.world_size} ranks."
        return Verdict(html=html, text="bytes as predicted: no", good=False)
    name, end = _named(told[0].config["algorithm"], told[0].config["collective"]), ", as predicted."
    html = f"<b>{name} sends {many[1]:.2f} S</b> with {many[0]} ranks"
    if few[0] != many[0]:
        html = f"<b>{few[1]:.2f} S at k = {few[0]}, {many[1]:.2f} S at k = {many[0]}</b>: {name}"
    if groups["gloo", "reduce_scatter"] and groups["gloo", "all_reduce"]:
        end = "; its reduce-scatter too."
    return Verdict(html=html + end, text="bytes as predicted: yes", good=True)


def show(runs) -> go.Figure:
    """The figure of a list of runs, or of one, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, runs), runs)
