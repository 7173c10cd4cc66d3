"""Ranks that drift apart: one parameter on every rank, step by step, and how far the ranks lie from each other.

A run's records hold, for each rank and optimizer update, a Step whose values["parameters"] is a list of a few sampled
parameters, the same ones on every rank.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import (
    INK,
    LINE,
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

STEADY = 1e-3  # of the largest difference: ranks whose differences change by less neither part nor meet
RANKS = 8  # lines with a colour of their own; further ranks share one grey trace
FLOOR, TOP = 1e-18, 1e2
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "pentagon")


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 380 px high."""
    figure = layout(go.Figure(), height=380, margin={"l": 64, "r": 16, "t": 52})
    for rank in range(RANKS):
        figure.add_trace(_line(f"rank {rank}", rank_colour(rank), rank_dash(rank), SYMBOLS[rank]))
    figure.add_trace(_line("other ranks", "#8a8a8a", "dot", "circle"))
    figure.add_trace(text_trace("labels", textposition="middle right", textfont={"weight": 700}))
    figure.add_trace(
        go.Scatter(
            name="spread",
            x=[],
            y=[],
            xaxis="x2",
            yaxis="y2",
            mode="lines+markers",
            hovertext=[],
            hoverinfo="text",
            line={"color": INK, "width": 2},
            marker={"size": 6},
            cliponaxis=False,
        )
    )
    ticks = (0, -4, -8, -12, -16)
    figure.update_layout(
        xaxis=axis("optimizer update", domain=[0, 0.54], range=[0, 10]),
        yaxis=axis("value", range=[0, 1], zeroline=True, zerolinecolor=LINE),
        xaxis2=axis("optimizer update", domain=[0.66, 1], anchor="y2", range=[0, 10]),
        yaxis2=axis(
            anchor="x2",
            type="log",
            range=[np.log10(FLOOR), np.log10(TOP)],
            tickvals=[FLOOR, *(10.0**n for n in ticks)],
            ticktext=["none", *(power_of_ten(10.0**n) for n in ticks)],
        ),
    )
    figure.add_annotation(caption("", x=0, y=1.015, name="value"))
    spread = f"<b>Spread between ranks</b><br>{soft('largest difference ÷ largest value')}"
    figure.add_annotation(caption(spread, x=0.6, y=1.015, name="spread"))
    return figure


def _line(name: str, colour: str, dash: str, symbol: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        mode="lines+markers",
        line={"color": colour, "width": 2, "dash": dash},
        hovertext=[],
        marker={"symbol": symbol, "size": 6, "color": colour},
        hoverinfo="text",
        cliponaxis=False,
    )


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`. Raises ValueError where the run recorded no sampled parameters."""
    sampled = sampled_parameters(run)
    k, steps, _ = sampled.shape
    spread = spread_between_ranks(sampled)
    which = int(np.argmax(np.ptp(sampled[:, -1], axis=0)))  # the parameter that parts the most
    traces = {trace.name: trace for trace in figure.data}
    values, at = sampled[:, :, which], list(range(1, steps + 1))
    for rank in range(RANKS):
        _set_lines(traces[f"rank {rank}"], at, values[rank : rank + 1], first=rank)
    _set_lines(traces["other ranks"], at, values[RANKS:], first=RANKS)
    _set_labels(figure, traces["labels"], values, steps)
    line = traces["spread"]
    line.x, line.y = at, [float(f"{min(max(value, FLOOR), TOP):.2e}") for value in spread]
    line.hovertext = [f"update {step}: {value:.2e}" for step, value in zip(at, spread, strict=True)]
    last = step_above(steps, (1, 2, 3, 5))
    for name in ("xaxis", "xaxis2"):
        figure.layout[name].update(
            range=[0.5, last + 0.5 + 0.06 * last * (name == "xaxis")], dtick=max(1, round(last / 5))
        )
    note = next(note for note in figure.layout.annotations if note.name == "value")
    note.text = (
        f"<b>One parameter on each rank</b><br>{soft(f'the one that parts the most, of {sampled.shape[2]} sampled')}"
    )
    return _verdict(run, sampled, spread)


def sampled_parameters(run) -> np.ndarray:
    """(k, steps, samples): the sampled parameters of every rank after every update."""
    try:
        rows = [[step.values["parameters"] for step in records] for records in run.records]
        sampled = np.array(rows, dtype=float)
    except (AttributeError, KeyError, ValueError) as error:
        raise ValueError(
            "this run did not record the same sampled parameters on every rank. Yield Step(step=..., loss=..., "
            "values={'parameters': [...]}) once an update."
        ) from error
    if sampled.ndim != 3 or 0 in sampled.shape:
        raise ValueError("this run recorded no update. Give it at least one step, and sample at least one parameter.")
    return sampled


def spread_between_ranks(sampled: np.ndarray) -> np.ndarray:
    """(steps,): the largest difference between two ranks over the largest value, 0 where the ranks agree exactly."""
    largest = np.abs(sampled).max(axis=(0, 2))
    return np.ptp(sampled, axis=0).max(axis=-1) / np.where(largest > 0, largest, 1)


def _set_lines(trace: go.Scatter, at: list[int], values: np.ndarray, *, first: int) -> None:
    trace.x = [x for _ in values for x in (*at, None)]
    trace.y = [y for line in values for y in (*(float(f"{value:.6g}") for value in line), None)]
    trace.hovertext = [
        text
        for rank, line in enumerate(values, start=first)
        for text in (*(f"rank {rank}, update {x}: {value:.6g}" for x, value in zip(at, line, strict=True)), "")
    ]


def _set_labels(figure: go.Figure, labels: go.Scatter, values: np.ndarray, steps: int) -> None:
    low, high = float(values.min()), float(values.max())
    room = step_above(max(high - low, 1e-9, 1e-3 * max(abs(low), abs(high))))
    bottom = np.floor(low / (room / 4)) * room / 4
    top = bottom + np.ceil((high - bottom) / (room / 4) + 0.2) * room / 4
    figure.layout.yaxis.range = [float(bottom), float(max(top, bottom + room / 4))]
    gap = 0.055 * (top - bottom)
    groups: list[list[int]] = []  # ranks whose lines end in one place share a label
    ends = values[:, -1]
    for rank in np.argsort(ends, kind="stable"):
        if groups and ends[rank] - ends[groups[-1][0]] < gap:
            groups[-1].append(int(rank))
        else:
            groups.append([int(rank)])
    labels.x = [steps + 0.15] * len(groups)
    labels.y = [float(f"{ends[group].mean():.6g}") for group in groups]
    labels.text = [
        " " + ("all" if len(group) == len(ends) > 1 else ", ".join(map(str, sorted(group)))) for group in groups
    ]
    labels.textfont.color = [rank_text_colour(group[0]) if len(group) == 1 else INK for group in groups]


def _verdict(run, sampled: np.ndarray, spread: np.ndarray) -> Verdict:
    k, steps = len(run.results), len(spread)
    updates = f"{steps} update{'s' * (steps > 1)}"
    if run.facts.get("ranks_identical", not spread.any()):
        html = f"<b>The ranks agree:</b> the same parameters on all {k} after each of {updates}."
        return Verdict(html=html, text=f"ranks identical: yes, {updates}", good=True)
    parted = run.facts.get("first_divergent_step")
    first = int(parted if parted is not None else np.flatnonzero(spread)[0]) + 1
    end = power(float(spread[-1]))
    html = f"<b>The ranks drift apart</b> from update {first} on; after {updates} the spread is {end}."
    if steps > 1 and np.ptp(np.ptp(sampled, axis=0), axis=0).max() < STEADY * np.ptp(sampled, axis=0).max():
        html = f"<b>The ranks stay apart</b>, by as much after {updates} as after the first: the spread is {end}."
    return Verdict(html=html, text=f"ranks identical: no, from update {first}", good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
