"""Which dimensions enter the global batch: the mesh as a grid of ranks, the product with the axes that do not enter it
struck out, and the bytes that a rank sends along each axis.
"""

import plotly.graph_objects as go

from dpviz.figures import mesh_grid as grid
from dpviz.figures.kinds import bytes_axis, size_text
from dpviz.figures.style import (
    INK,
    REDUCED,
    REDUCED_EDGE,
    SMALL,
    SOFT_INK,
    axis,
    caption,
    layout,
    power,
    soft,
    step_above,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

ORDER = ("tp", "cp", "ep", "shard", "replicate", "dp", "pp")
TRAVELS = {
    "tp": "activations of each layer, and back",
    "cp": "gradients, once a step; attention is not run",
    "ep": "nothing: a group only, no experts are run",
    "shard": "parameters gathered, gradients scattered",
    "replicate": "a shard of the gradients, once a step",
    "dp": "gradients, once a step",
    "pp": "activations of each micro-batch, and back",
}
TOPS = (1, 1.5, 2, 3, 4, 5, 8)


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 520 px high, as wide as its place."""
    figure = layout(go.Figure(), height=520, margin={"l": 12, "r": 14, "t": 60, "b": 46})
    grid.add(figure, y=[0.45, 1])
    line = {"color": REDUCED_EDGE, "width": 1.5}
    where = {"xaxis": "x2", "yaxis": "y2"}
    bars = {"orientation": "h", "width": 0.62, "hovertext": [], "hoverinfo": "text", "textposition": "none"}
    figure.add_trace(go.Bar(name="sent", x=[], y=[], marker={"color": REDUCED, "line": line}, **bars, **where))
    dots = {"color": INK, "width": 2, "dash": "dot"}
    figure.add_trace(go.Scatter(name="predicted", x=[], y=[], mode="lines", line=dots, hoverinfo="skip", **where))
    figure.add_trace(
        text_trace("travels", textposition="middle right", textfont={"size": SMALL, "color": INK}, **where)
    )
    figure.update_layout(
        xaxis2=axis("bytes a rank sends in a step", domain=[0.1, 1], range=[0, 1], anchor="y2"),
        yaxis2=axis(domain=[0, 0.25], range=[-0.5, 3.5], anchor="x2", showgrid=False, tickvals=[], ticktext=[]),
    )
    figure.add_annotation(caption("", x=0, y=1.03, name="product"))
    figure.add_annotation(caption("", x=0, y=0.265, name="bytes"))
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say how many samples a step really reads."""
    grid.draw(figure, run)
    notes = {note.name: note for note in figure.layout.annotations}
    notes["product"].text = _product(run)
    _draw_bytes(figure, run)
    most = "of the rank that sends most" if len(set(run.facts["wire_bytes"])) > 1 else "the same on every rank"
    notes["bytes"].text = f"<b>Sent along each axis</b> {soft(f'{most}; dotted: by the formula')}"
    return _verdict(run)


def _product(run) -> str:
    """D · B · K, and beside it, struck out, what does not enter."""
    config, facts = run.config, run.facts
    D, B, K = config["dp"], config["micro_batch"], config["accumulation_steps"]
    out = [f"{name.upper()} {config[name]}" for name in ("tp", "pp", "cp")]
    if config["expert_axis"] == "separate":
        out.append(f"EP {config['ep']}")
    struck = " · ".join(f"<span style='color:{SOFT_INK}'><s>{one}</s></span>" for one in out)
    experts = f"EP {config['ep']}" if config["ep"] > 1 else "EP"
    inside = f"; {experts} lies inside D" if config["expert_axis"] == "inside_dp" else ""
    counted = f"counted in a step: {facts['distinct_samples']:,} different samples, {facts['distinct_tokens']:,} tokens"
    product = f"global batch = <b>D {D} · B {B} · K {K} = {facts['global_batch']:,}</b>"
    return f"<span style='font-size:16px'>{product} &nbsp; {struck}</span><br>{soft(counted + inside)}"


def _draw_bytes(figure: go.Figure, run) -> None:
    facts, traces = run.facts, {trace.name: trace for trace in figure.data}
    names = [n for n in ORDER if n in facts["groups"] and not (n == "dp" and run.config["shard"] > 1)]
    sent, formula = ({n: max(facts[key][n]) for n in names} for key in (SENT, f"{SENT}_predicted"))
    places = {name: len(names) - 1 - number for number, name in enumerate(names)}
    top = step_above(2.1 * max(*sent.values(), *formula.values(), 500), TOPS)  # room for the words
    traces["sent"].x, traces["sent"].y = list(sent.values()), list(places.values())
    traces["sent"].hovertext = [
        f"<b>{name}</b>: {sent[name]:,} B ({run.environment.wire.partition(':')[0]})<br>predicted {formula[name]:,} B"
        for name in names
    ]
    traces["predicted"].x = [at for name in names for at in (formula[name], formula[name], None)]
    traces["predicted"].y = [at for name in names for at in (places[name] - 0.42, places[name] + 0.42, None)]
    words = traces["travels"]
    words.x, words.y = [max(sent[n], formula[n]) for n in names], list(places.values())
    words.text = [f"&nbsp; <b>{size_text(sent[n])}</b>  {_travels(run, n)}" for n in names]
    ticks, unit = bytes_axis(top)
    figure.layout.xaxis2.update(**ticks)
    figure.layout.xaxis2.title.text = f"{unit} a rank sends in a step"
    sizes = {name: len(facts["groups"][name][0]) for name in names}
    figure.layout.yaxis2.update(
        range=[-0.6, len(names) - 0.4],
        tickvals=list(places.values()),
        ticktext=[f"{name}, {sizes[name]}" for name in names],
    )


SENT = "wire_bytes_by_group"


def _travels(run, name: str) -> str:
    if name != "ep" and len(run.facts["groups"][name][0]) == 1:
        return "nothing: one rank has no one to talk to"
    return TRAVELS[name]


def _verdict(run) -> Verdict:
    facts, D, world = run.facts, run.config["dp"], len(run.results)
    batch, wrong, counted = facts["global_batch"], facts["wrong_global_batch"], facts["distinct_samples"]
    if counted != batch:
        html = f"<b>Not the batch that was meant:</b> {counted:,} different samples, not {batch:,}."
        return Verdict(html=html, text=f"distinct samples {counted}, global batch {batch}", good=False)
    if not facts["as_one_process"]:
        off = power(facts["max_difference_from_single"])
        html = f"<b>Not the step of one process:</b> gradients or parameters are off by {off}."
        return Verdict(html=html, text="as one process: no", good=False)
    if world == 1:
        html = f"<b>{batch:,} samples a step:</b> one rank reads them all."
    elif world == D:
        html = f"<b>{batch:,} samples a step:</b> all {world} ranks read data of their own."
    else:
        html = (
            f"<b>{batch:,} samples a step, not {wrong:,}:</b> {world} ranks, and only D = {D} read data of their own."
        )
    text = f"global batch {batch}, counted {counted}, world * B * K {wrong}; as one process: yes"
    return Verdict(html=html, text=text, good=True)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
