"""Which ZeRO stage for a model, its ranks and their card: memory against the card, and a step's time, by the planner's
closed forms (theory.plan). The stage to take is framed.

`draw(figure, plan)` takes a theory.plan.Plan, as dpviz.planner.Config.plan returns it:

    dp.calculator(Config.plan, Config(), figure=plan, controls={...}, presets={"params": PRESETS})
"""

import plotly.graph_objects as go

from dpviz.figures.kinds import COLOURS as KINDS
from dpviz.figures.kinds import UNITS, bytes_axis, size_text
from dpviz.figures.style import (
    INK,
    NO,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SMALL,
    YES,
    axis,
    caption,
    layout,
    soft,
    step_above,
)
from dpviz.figures.verdict import Verdict, headed
from dpviz.theory.plan import GB, NAMES

WIDE = 0.78  # of a bar, in stages
LEFT, RIGHT = [0, 0.46], [0.56, 1]
COMPUTING = "#b5bcc4"
LOST = "#e9b59a"  # what does not fit
VEIL = "rgba(255, 255, 255, 0.85)"
TOPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8)  # where the axis of times may end: four even parts
HIGHEST = 0.87  # of the axis: labels of bars that leave through the top stand here
OF_THE_CARD = 2  # the axis of memory ends at so many cards, so that it moves with the card alone


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high."""
    figure = layout(go.Figure(), height=420, margin={"l": 62, "r": 14, "t": 62, "b": 34}, barmode="stack")
    for name, number, hatch in (
        ("model state", "", ""),
        ("activations and headroom", "", "/"),
        ("computing", "2", ""),
        ("sending", "2", "/"),
    ):
        pattern = {"shape": hatch, "size": 7, "solidity": 0.15, "fgcolor": "#ffffff", "fillmode": "overlay"}
        figure.add_trace(
            go.Bar(
                name=name,
                x=list(range(4)),
                y=[0] * 4,
                width=WIDE,
                marker={"color": [COMPUTING] * 4, "line": {"color": "#ffffff", "width": 1}, "pattern": pattern},
                hovertext=[],
                hoverinfo="text",
                xaxis=f"x{number}",
                yaxis=f"y{number}",
            )
        )
    traces = {trace.name: trace for trace in figure.data}
    traces["sending"].marker.update(color=REDUCED, line={"color": REDUCED_EDGE, "width": 1})
    traces["sending"].marker.pattern.fgcolor = REDUCED_EDGE
    line = {"color": NO, "width": 2, "dash": "longdash"}
    figure.add_trace(go.Scatter(name="card", x=[-0.5, 3.5], y=[1, 1], mode="lines", line=line, hoverinfo="skip"))
    line = {"color": REFERENCE, "width": 2, "dash": "dot"}
    hidden = {"x": [], "y": [], "mode": "lines", "hoverinfo": "skip", "xaxis": "x2", "yaxis": "y2"}
    figure.add_trace(go.Scatter(name="all hidden", line=line, **hidden))
    stages = {"tickvals": list(range(4)), "ticktext": list(NAMES), "range": [-0.5, 3.5], "showgrid": False}
    stages["tickfont"] = {"size": 13, "color": INK}
    frame = {"type": "rect", "y0": 0, "y1": 1, "line": {"color": YES, "width": 3}, "x0": -0.47, "x1": 0.47}
    figure.update_layout(
        xaxis=axis(domain=LEFT, anchor="y", **stages),
        yaxis=axis("", domain=[0, 1], anchor="x", range=[0, 1], tickvals=[]),
        xaxis2=axis(domain=RIGHT, anchor="y2", **stages),
        yaxis2=axis("seconds a step", domain=[0, 1], anchor="x2", range=[0, 1], tickvals=[]),
        shapes=[
            frame | {"name": f"choice{number}", "xref": f"x{number}", "yref": f"y{number} domain"}
            for number in ("", "2")
        ],
        annotations=[
            caption("", x=0, y=1.02, name="memory"),
            caption("", x=RIGHT[0], y=1.02, name="time"),
            *(_label(number, stage) for number in ("", "2") for stage in range(4)),
        ],
    )
    return figure


def _label(number: str, stage: int) -> dict:
    where = {"xref": f"x{number}", "yref": f"y{number}", "xanchor": "center", "align": "center", "bgcolor": VEIL}
    font = {"size": SMALL, "color": INK}
    return caption("", x=stage, y=0, name=f"bar{number} {stage}", **where) | {"font": font, "borderpad": 0}


def draw(figure: go.Figure, plan) -> Verdict:
    """Change `figure` (of `make`) to show a Plan, and say which stage to take."""
    traces = {trace.name: trace for trace in figure.data}
    notes = {note.name: note for note in figure.layout.annotations}
    _draw_memory(figure, traces, notes, plan)
    _draw_time(figure, traces, notes, plan)
    for shape in figure.layout.shapes:
        at = plan.choice if plan.choice is not None else 0
        shape.update(x0=at - 0.47, x1=at + 0.47, visible=plan.choice is not None)
    return _verdict(plan)


def _draw_memory(figure: go.Figure, traces: dict, notes: dict, plan) -> None:
    stages, card = plan.stages, plan.stages[0].memory_gb + plan.stages[0].free_gb
    top = OF_THE_CARD * card
    state, rest = traces["model state"], traces["activations and headroom"]
    state.y = [stage.model_state_gb * GB for stage in stages]
    rest.y = [(stage.memory_gb - stage.model_state_gb) * GB for stage in stages]
    state.marker.color = [KINDS["parameters"] if stage.fits else LOST for stage in stages]
    rest.marker.color = [KINDS["activations"] if stage.fits else LOST for stage in stages]
    for trace in (state, rest):
        trace.hovertext = [
            f"<b>{stage.name}</b>: {stage.model_state_gb:,.5g} GB of model state<br>"
            f"{stage.memory_gb - stage.model_state_gb:,.5g} GB of activations and headroom<br>"
            f"{stage.memory_gb:,.5g} of {card:g} GB"
            for stage in stages
        ]
    traces["card"].y = [card * GB] * 2
    ticks, unit = bytes_axis(top * GB)
    figure.layout.yaxis.update(**ticks)
    figure.layout.yaxis.title.text = f"{unit} a rank"
    for stage in stages:
        free = stage.free_gb * GB / 1000 ** UNITS.index(unit)
        told = soft(f"{free:.3g} free") if stage.fits else f"<span style='color:{NO}'>✗ too much</span>"
        beyond = "▲ " if stage.memory_gb > top else ""
        notes[f"bar {stage.stage}"].update(
            y=min(stage.memory_gb, HIGHEST * top) * GB,
            text=f"<b>{beyond}{size_text(stage.memory_gb * GB, digits=4)}</b><br>{told}",
        )
    dashes = f"<span style='color:{NO}'>– – the card: {size_text(card * GB)}</span>"
    key = soft("plain: model state; hatched: activations, headroom")
    notes["memory"].text = f"<b>What a rank holds</b>   {dashes}<br>{key}"


def _draw_time(figure: go.Figure, traces: dict, notes: dict, plan) -> None:
    stages = plan.stages
    traces["computing"].y = [stage.compute_s for stage in stages]
    traces["sending"].y = [stage.communication_s for stage in stages]
    for name in ("computing", "sending"):
        traces[name].hovertext = [
            f"<b>{stage.name}</b>: {_plain(stage.compute_s)} s of computing<br>{_plain(stage.communication_s)} s of "
            f"sending {stage.traffic_gb:,.5g} GB<br>a step: {_plain(stage.step_s)} s if all of it is hidden, "
            f"{_plain(stage.step_exposed_s)} s if nothing is"
            for stage in stages
        ]
    hidden = traces["all hidden"]
    hidden.x = [at for stage in stages for at in (stage.stage - 0.46, stage.stage + 0.46, None)]
    hidden.y = [at for stage in stages for at in (stage.step_s, stage.step_s, None)]
    for stage in stages:
        seconds = soft(f"≤ {_plain(stage.step_exposed_s)} s")
        text = f"<b>{size_text(stage.traffic_gb * GB, digits=4)}</b><br>{seconds}"
        notes[f"bar2 {stage.stage}"].update(y=stage.step_exposed_s, text=text)
    top = step_above(1.2 * max(stage.step_exposed_s for stage in stages), TOPS)
    ticks = [top * part / 4 for part in range(5)]
    figure.layout.yaxis2.update(range=[0, top], tickvals=ticks, ticktext=list(map(_plain, ticks)))
    key = soft("grey computes, yellow sends; dotted: hidden")
    notes["time"].text = f"<b>Sent in a step, and its time</b><br>{key}"


def _plain(number: float) -> str:
    """Three digits, without powers of ten where people use none: 2457.3 is '2,460'."""
    return f"{float(f'{number:.3g}'):,.9g}"


def notes(plan) -> list[str]:
    """Return why, and what else there is to know, as sentences."""
    return [plan.why, *plan.notes, f"The global batch is {plan.global_batch_tokens:,} tokens."]


def _verdict(plan) -> Verdict:
    last = plan.stages[-1]
    card = size_text((last.memory_gb + last.free_gb) * GB)
    if plan.choice is None:
        least = size_text(last.memory_gb * GB, digits=4)
        html = f"<b>Nothing fits:</b> even ZeRO-3 would take {least}, the card has {card}."
        return Verdict(html=html, text="nothing fits", good=False)
    chosen, plain = plan.stages[plan.choice], plan.stages[0]
    held, sent = (size_text(count * GB, digits=4) for count in (chosen.memory_gb, chosen.traffic_gb))
    html = f"<b>Take {chosen.name}:</b> {held} of {card}, {sent} sent a step"
    if chosen.traffic_gb > plain.traffic_gb:
        html += f", {chosen.traffic_gb / plain.traffic_gb:.3g} × as much as DP"
    return Verdict(html=f"{html}.", text=f"take {chosen.name}: {held} of {card}, {sent} a step", good=True)


def show(plan) -> go.Figure:
    """The figure of a Plan, its verdict as the title."""
    figure = make()
    return headed(figure, draw(figure, plan), "modelled, not measured")
