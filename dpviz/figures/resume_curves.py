"""A run without interruption against one resumed from its checkpoint: both losses, and how far they are apart.

The facts hold `losses` (one an update), `losses_resumed` (those after the checkpoint) and `first_divergent_step`.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import (
    LINE,
    NO,
    RANK_COLOURS,
    REFERENCE,
    SOFT_INK,
    axis,
    caption,
    layout,
    power_of_ten,
    soft,
    step_above,
)
from dpviz.figures.verdict import Verdict, titled

FLOOR, TOP, PARTED = 1e-13, 1e1, 1e-9  # of the differences: drawn from, drawn to, and what counts as one
RESUMED = RANK_COLOURS[3]
WORDS = {
    "none": "with all of it",
    "optimizer": "without the optimizer state",
    "scheduler": "without the schedule",
    "data_position": "without the data position",
    "rng": "without the random state",
}


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high, as wide as its place."""
    figure = layout(go.Figure(), height=420, margin={"l": 72, "r": 16, "t": 54})
    figure.add_trace(_line("checkpoint", SOFT_INK, 1.5, "dot", ""))
    figure.add_trace(_line("without interruption", REFERENCE, 5, "solid", ""))
    figure.add_trace(_line("resumed", RESUMED, 2, "solid", "", symbol="circle"))
    figure.add_trace(_line("part here", NO, 2, "solid", "", symbol="circle-open"))
    figure.add_trace(_line("tolerance", SOFT_INK, 1.5, "dash", "2"))
    figure.add_trace(_line("difference", RESUMED, 2, "solid", "2", symbol="circle"))
    figure.data[3].update(mode="markers", marker={"size": 18, "line": {"width": 3}})
    ticks = (0, -4, -8)
    logs = {"type": "log", "range": [float(np.log10(FLOOR)), float(np.log10(TOP))]}
    words = {"tickvals": [FLOOR, *(10.0**n for n in ticks)]}
    words["ticktext"] = ["none", *(power_of_ten(10.0**n) for n in ticks)]
    figure.update_layout(
        xaxis=axis(anchor="y", range=[-0.5, 15.5], showticklabels=False),
        yaxis=axis("loss", domain=[0.46, 1], range=[0, 3], zeroline=True, zerolinecolor=LINE),
        xaxis2=axis("optimizer update", anchor="y2", range=[-0.5, 15.5]),
        yaxis2=axis(domain=[0, 0.3], anchor="x2", **logs, **words),
    )
    figure.add_annotation(caption("", x=0, y=1.015, name="curves"))
    words = f"<b>Difference of the losses</b> {soft('dashed: above 10⁻⁹ they have parted')}"
    figure.add_annotation(caption(words, x=0, y=0.315, name="difference"))
    note = caption("", x=0, y=0.98, xref="x", yref="y domain", name="checkpoint", yanchor="top", xanchor="right")
    figure.add_annotation(note | {"align": "right"})
    return figure


def _line(name: str, colour: str, width: float, dash: str, axes: str, symbol: str = "") -> go.Scatter:
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
        mode="lines+markers" if symbol else "lines",
        line={"color": colour, "width": width, "dash": dash},
        marker={"symbol": symbol or "circle", "size": 7, "color": colour},
        hovertext=[],
        hoverinfo="text",
        cliponaxis=False,
    )


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say whether and when the curves part."""
    losses, resumed = (np.asarray(run.facts[name], dtype=float) for name in ("losses", "losses_resumed"))
    stop, steps = run.config["stop_after"], len(losses)
    after = list(range(stop, steps))
    apart = np.abs(losses[stop:] - resumed)
    traces = {trace.name: trace for trace in figure.data}
    top = max(3, step_above(1.05 * float(np.nanmax([*losses, *resumed])), (1, 1.5, 2, 3, 5)))
    _set(traces["checkpoint"], [stop - 0.5] * 2, [0, top], [""] * 2)
    _set(traces["without interruption"], list(range(steps)), losses, [f"without interruption: {v:.4f}" for v in losses])
    _set(traces["resumed"], after, resumed, [f"resumed: {value:.4f}" for value in resumed])
    first = run.facts["first_divergent_step"]
    parted = [] if first is None else [first]
    _set(traces["part here"], parted, [resumed[one - stop] for one in parted], ["the first difference"] * len(parted))
    _set(traces["tolerance"], [-0.5, steps - 0.5], [PARTED] * 2, [""] * 2)
    shown = np.clip(np.where(apart < 1e-12, FLOOR, apart), FLOOR, TOP)  # below is rounding, another on each machine
    _set(traces["difference"], after, shown, [_said(one, value) for one, value in zip(after, apart, strict=True)])
    for name in ("xaxis", "xaxis2"):
        figure.layout[name].update(range=[-0.5, steps - 0.5], dtick=max(1, round(step_above(steps / 12))))
    figure.layout.yaxis.range = [0, top]
    notes = {note.name: note for note in figure.layout.annotations}
    again = run.config["resume_world_size"]
    colour = f"<span style='color:{RESUMED}'>resumed by {again}, {WORDS[run.config['without']]}</span>"
    notes["curves"].text = f"<b>Loss</b>, black: {len(run.results)} ranks without interruption; <b>{colour}</b>"
    notes["checkpoint"].update(x=stop - 0.6, text=soft(f"checkpoint<br>of {len(run.results)} ranks"))
    return _verdict(run, float(apart.max()), first, steps - stop)


def _set(trace: go.Scatter, x: list, y, texts: list[str]) -> None:
    trace.x, trace.y, trace.hovertext = x, [float(f"{value:.4g}") for value in y], texts


def _said(update: int, value: float) -> str:
    return f"update {update}: {'below 10⁻¹²' if value < 1e-12 else f'{value:.1e}'}"


def _verdict(run, worst: float, first: int | None, count: int) -> Verdict:
    what = WORDS[run.config["without"]]
    if first is None:
        size = "below 10⁻⁹" if worst > 1e-12 else "below 10⁻¹²"
        html = f"<b>It goes on alike,</b> {what}: {count} losses, differences {size}."
        return Verdict(html=html, text=f"goes on alike: yes, {count} updates", good=True)
    late = first - run.config["stop_after"]
    when = "at once" if late == 0 else f"{late} after resuming"
    html = f"<b>They part at update {first},</b> {when}, {what}: up to {worst:.2f} apart."
    return Verdict(html=html, text=f"goes on alike: no, parts at update {first}", good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
