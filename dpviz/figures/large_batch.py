"""A training run with a large batch: its loss over the samples seen, and how noisy gradients of several batches are.

A run of `large_batch` has the facts losses, global_batch, lr, steps_to_target, gradient_noise, noise_exponent,
noise_scale and diverged.
"""

import math

import plotly.graph_objects as go

from dpviz.figures.style import (
    NO,
    RANK_COLOURS,
    REFERENCE,
    SMALL,
    SOFT_INK,
    axis,
    caption,
    layout,
    power,
    soft,
    step_above,
)
from dpviz.figures.verdict import Verdict, titled

BLUE = RANK_COLOURS[0]
HIGHEST = 3.0  # the loss axis ends here; what diverges leaves through its upper edge


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high."""
    figure = layout(go.Figure(), height=420, margin={"l": 56, "r": 20, "t": 62, "b": 48})
    right = {"xaxis": "x2", "yaxis": "y2"}
    figure.add_trace(_line("target", REFERENCE, 1.5, dash="dash"))
    figure.add_trace(_line("loss", BLUE, 2.4))
    figure.add_trace(_line("formula", REFERENCE, 1.5, dash="dash", **right))
    figure.add_trace(_line("noise", BLUE, 0, mode="markers", marker={"size": 11, "color": BLUE}, **right))
    figure.update_layout(
        xaxis=axis("samples seen", domain=[0, 0.56], range=[0, 1000]),
        yaxis=axis("loss, mean of the global batch", range=[0, HIGHEST]),
        xaxis2=axis("batch, samples", domain=[0.7, 1], anchor="y2", type="log", tickvals=[4, 8, 16, 32]),
        yaxis2=axis("length of the deviation", anchor="x2", type="log", dtick=1),
        annotations=[
            caption("", x=0, y=1.02, name="training"),
            caption("", x=0.64, y=1.02, name="noise"),
            caption("", x=1, y=0, xref="x domain", yref="y", xanchor="right", yanchor="top", name="target"),
        ],
    )
    return figure


def _line(name: str, colour: str, width: float, *, dash: str = "solid", mode: str = "lines", **more) -> go.Scatter:
    line = {"color": colour, "width": width, "dash": dash}
    return go.Scatter(name=name, x=[], y=[], mode=mode, line=line, hovertext=[], hoverinfo="text", **more)


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say how the training went."""
    facts, traces = run.facts, {trace.name: trace for trace in figure.data}
    losses, batch, target = facts["losses"], int(facts["global_batch"]), float(run.config["target_loss"])
    samples = [(number + 1) * batch for number in range(len(losses))]
    last = step_above(samples[-1], (1, 1.5, 2, 3, 5, 7))
    loss = traces["loss"]
    loss.x, loss.y = samples, [_within(value) for value in losses]
    loss.hovertext = [
        f"update {i + 1}, {s:,} samples: {value:.4g}" for i, (s, value) in enumerate(zip(samples, losses, strict=True))
    ]
    loss.line.color = NO if facts["diverged"] else BLUE
    traces["target"].x, traces["target"].y = [0, last], [target, target]
    traces["target"].hovertext = [f"target {target:g}"] * 2
    _draw_noise(traces, facts)
    figure.layout.xaxis.range = [0, last]
    notes = {note.name: note for note in figure.layout.annotations}
    notes["training"].text = f"<b>Training</b><br>{soft(_how(run))}"
    slope = soft(f"slope {facts['noise_exponent']:.2f}, dashed: −1/2")
    notes["noise"].text = f"<b>Noise of the gradient</b><br>{slope}"
    notes["target"].text, notes["target"].y = soft(f"target {target:g}"), target
    low, high = (10 ** f(math.log10(v)) for f, v in ((math.floor, min(_noise(facts))), (math.ceil, max(_noise(facts)))))
    figure.layout.yaxis2.range = [math.log10(low), math.log10(high)]
    figure.layout.xaxis2.range = [math.log10(3), math.log10(44)]
    return _verdict(run)


def _within(value: float) -> float:
    return round(min(float(value), 10 * HIGHEST), 5) if math.isfinite(value) else 10 * HIGHEST


def _noise(facts: dict) -> list[float]:
    return [float(value) for value in facts["gradient_noise"].values()]


def _draw_noise(traces: dict, facts: dict) -> None:
    batches, noise = [int(batch) for batch in facts["gradient_noise"]], _noise(facts)
    measured, formula = traces["noise"], traces["formula"]
    measured.x, measured.y = batches, [float(f"{value:.5g}") for value in noise]
    measured.hovertext = [f"{b} samples: {value:.4g} (measured)" for b, value in zip(batches, noise, strict=True)]
    formula.x = batches
    formula.y = [float(f"{noise[0] * math.sqrt(batches[0] / b):.5g}") for b in batches]
    formula.hovertext = ["as 1/√batch from the first point (formula)"] * len(batches)


def _how(run) -> str:
    config = run.config
    warm = f", warm-up {100 * config['warmup_fraction']:g} %" if config["warmup_fraction"] else ""
    return f"{config['optimizer']}, scaling {config['scaling']}: lr {run.facts['lr']:.3g}{warm}"


def _verdict(run) -> Verdict:
    facts = run.facts
    batch, reached = f"a batch of {facts['global_batch']}", facts["steps_to_target"]
    scale = f"Noise scale about {power(float(facts['noise_scale']))} samples."
    if facts["diverged"]:
        html = f"<b>It diverges</b> with {batch} at a learning rate of {facts['lr']:.3g}. {scale}"
        return Verdict(html=html, text=f"batch {facts['global_batch']}: diverges", good=False)
    if reached is None:
        html = f"<b>The target is not reached</b> in {len(facts['losses'])} updates with {batch}. {scale}"
        return Verdict(html=html, text=f"batch {facts['global_batch']}: target not reached", good=None)
    html = f"<b>Target after {reached} updates</b>, {facts['samples_to_target']:,} samples, with {batch}. {scale}"
    return Verdict(html=html, text=f"batch {facts['global_batch']}: target after {reached} updates", good=None)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)


def compare(runs: dict) -> go.Figure:
    """Losses of several runs over the samples they saw, one line a name, and updates to the target over the batch.

    runs: name -> Run of `large_batch`; at most six. A run that never reaches the target has no point on the right.
    """
    if not 1 <= len(runs) <= len(RANK_COLOURS):
        raise ValueError(f"{len(runs)} runs were given, but 1 to {len(RANK_COLOURS)} can be told apart. Compare fewer.")
    figure = layout(go.Figure(), height=420, margin={"l": 56, "r": 20, "t": 62, "b": 48}, showlegend=True)
    figure.update_layout(legend={"x": 0.01, "xanchor": "left", "y": 0.02, "yanchor": "bottom", "font": {"size": SMALL}})
    dashes = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
    for (name, run), colour, dash in zip(runs.items(), RANK_COLOURS, dashes, strict=False):
        batch = run.facts["global_batch"]
        samples = [(number + 1) * batch for number in range(len(run.facts["losses"]))]
        trace = _line(name, colour, 2.2, dash=dash)
        trace.x, trace.y = samples, [_within(value) for value in run.facts["losses"]]
        trace.hovertext = [f"{name}, {s:,} samples: {v:.4g}" for s, v in zip(samples, run.facts["losses"], strict=True)]
        figure.add_trace(trace)
    _add_steps(figure, runs)
    figure.update_layout(
        xaxis=axis("samples seen", domain=[0, 0.56], type="log", dtick=1),
        yaxis=axis("loss, mean of the global batch", range=[0, HIGHEST]),
        xaxis2=axis("global batch, samples", domain=[0.7, 1], anchor="y2", type="log", dtick=math.log10(2)),
        yaxis2=axis("updates to the target", anchor="x2", type="log", dtick=math.log10(2)),
        annotations=[
            caption("<b>Loss</b>", x=0, y=1.02),
            caption(
                f"<b>Updates to the target</b><br>{soft('dashed: twice the batch, half the updates')}", x=0.64, y=1.02
            ),
        ],
    )
    return figure


def _add_steps(figure: go.Figure, runs: dict) -> None:
    right = {"xaxis": "x2", "yaxis": "y2", "showlegend": False}
    points = [
        (run.facts["global_batch"], run.facts["steps_to_target"], name, colour)
        for (name, run), colour in zip(runs.items(), RANK_COLOURS, strict=False)
        if run.facts["steps_to_target"]
    ]
    if not points:
        return
    figure.add_trace(
        go.Scatter(
            x=[p[0] for p in points],
            y=[p[1] for p in points],
            mode="markers",
            marker={"size": 11, "color": [p[3] for p in points]},
            hovertext=[f"{p[2]}: {p[1]} updates" for p in points],
            hoverinfo="text",
            **right,
        )
    )
    first, end = points[0], max(p[0] for p in points)
    line = {"color": SOFT_INK, "width": 1.5, "dash": "dash"}
    figure.add_trace(
        go.Scatter(
            x=[first[0], end],
            y=[first[1], first[1] * first[0] / end],
            mode="lines",
            line=line,
            hoverinfo="skip",
            **right,
        )
    )
