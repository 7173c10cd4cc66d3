"""Where a gradient is clipped decides where the update points. Left what each rank has, right what is left of it.

A run's `results` hold, for each rank, `local` (n,) its own gradient, `update` (n,) what its optimizer gets and
`reference` (n,) that of average-then-clip. Two entries are drawn as they are, more in the plane of the two.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.arrows import arrow_trace
from dpviz.figures.plane import Plane, place_labels
from dpviz.figures.style import (
    INK,
    LINE,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SOFT_INK,
    SUPERSCRIPTS,
    axis,
    caption,
    layout,
    rank_colour,
    rank_dash,
    rank_text_colour,
    soft,
    step_above,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

COLOURED = 8  # ranks with an arrow of their own; further ranks share a grey trace
SAME = 1e-4  # of the length: less is torch's small number in the denominator
HALO = "0 0 2px #fff, 0 0 2px #fff, 0 0 3px #fff"
STEPS = (1.25, 1.5, 2, 2.5, 3, 4, 5, 7, 10)
PLOT = 170  # px, about, from the origin to the edge
LEFT, RIGHT = [0, 0.46], [0.54, 1]
WORDS = {
    "average_then_clip": "average, then clip",
    "clip_then_average": "clip, then average",
    "clip_each_micro_batch": "clip each micro-batch, then average",
    "clip_each_shard": "clip each shard by its own norm",
    "clip_shards_together": "clip shards by the norm of all",
    "clip_before_unscale": "clip, then unscale",
}


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 460 px high, as wide as its place."""
    figure = layout(go.Figure(), height=460, margin={"l": 58, "r": 16, "t": 72})
    for axes in ("", "2"):
        figure.add_trace(_line(f"limit{axes}", SOFT_INK, 1.5, "dash", axes))
    figure.add_trace(arrow_trace("the average", REFERENCE, width=3.5, head=16))
    for axes, width, dash in (("", 2.6, "solid"), ("2", 1.6, "dot")):  # measured, and clipped by the formula
        look = {"head": 12, "width": width, "axes": axes}
        for rank in range(COLOURED):
            name = f"rank {rank}, {axes or '1'}"
            figure.add_trace(arrow_trace(name, rank_colour(rank), dash=dash if axes else rank_dash(rank), **look))
        figure.add_trace(arrow_trace(f"other ranks, {axes or '1'}", "#8a8a8a", dash=dash, **look))
    figure.add_trace(arrow_trace("average, then clip", REFERENCE, width=11, head=34, axes="2"))
    figure.add_trace(_line("edge", REDUCED_EDGE, 7, "solid", "2"))
    figure.add_trace(arrow_trace("the update", REDUCED, width=4.5, head=19, axes="2"))
    figure.data[-1].marker.line.update(width=1.5, color=REDUCED_EDGE)
    figure.add_trace(_line("angle", INK, 1.5, "solid", "2"))
    for axes in ("", "2"):
        figure.add_trace(_texts(f"labels{axes}", axes))
    ruled = {"zeroline": True, "zerolinecolor": LINE, "zerolinewidth": 1}
    for number, domain in (("", LEFT), ("2", RIGHT)):
        across = axis("1st entry", domain=domain, anchor=f"y{number}", range=[-1, 1], **ruled)
        up = axis("2nd entry" * (not number), anchor=f"x{number}", range=[-1, 1], scaleanchor=f"x{number}", **ruled)
        figure.update_layout({f"xaxis{number}": across, f"yaxis{number}": up | {"constrain": "range"}})
        figure.add_annotation(caption("", x=domain[0], y=1.015, name=f"caption{number}"))
    return figure


def _line(name: str, colour: str, width: float, dash: str, axes: str) -> go.Scatter:
    line = {"color": colour, "width": width, "dash": dash}
    return go.Scatter(
        name=name, x=[], y=[], xaxis=f"x{axes}", yaxis=f"y{axes}", mode="lines", line=line, hoverinfo="skip"
    )


def _texts(name: str, axes: str) -> go.Scatter:
    return text_trace(name, xaxis=f"x{axes}", yaxis=f"y{axes}", textfont={"size": 14, "weight": 700, "shadow": HALO})


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say how far the update is from average-then-clip's."""
    limit, local = float(run.config["max_norm"]), _local(run)
    update, reference = (np.asarray(run.results[0][name], dtype=float) for name in ("update", "reference"))
    average = local.sum(0) if _shards(run) else local.mean(0)
    factors = np.minimum(1, limit / np.maximum(np.linalg.norm(local, axis=1, keepdims=True), 1e-300))
    every = np.vstack([local, local * factors, average, update, reference])
    shown, flat = _projected(every, update, reference), every.shape[1] == 2
    k, traces = len(local), {trace.name: trace for trace in figure.data}
    lengths = [f"{length:.4g}" for length in np.linalg.norm(every, axis=1)]
    clipped = shown[k : 2 * k] if _ranks_clip(run) else shown[:0]
    spans = np.linalg.norm(shown, axis=1)
    left = step_above(1.1 * max(spans[: 2 * k + 1].max(), min(limit, spans.max())), STEPS)
    right = step_above(1.1 * max(np.linalg.norm(clipped, axis=1).max(initial=0), spans[-2:].max(), 1e-9), STEPS)
    _set_ranks(traces, "1", shown[:k], [f"alone: length {length}" for length in lengths[:k]], left)
    _set_ranks(traces, "2", clipped, [f"clipped: length {length}" for length in lengths[k : 2 * k]], right)
    name = "the shards together" if _shards(run) else "the average"
    _set(traces["the average"], shown[2 * k :][:1], [f"<b>{name}</b><br>length {lengths[-3]}"], left)
    asked = f"<b>{WORDS[run.config['order']]}</b><br>length {lengths[-2]}"
    _set(traces["the update"], shown[-2:-1], [asked], right)
    _set_edge(traces["edge"], shown[-2], traces["the update"].meta, right)
    _set(traces["average, then clip"], shown[-1:], [f"<b>average, then clip</b><br>length {lengths[-1]}"], right)
    for number, half in (("", left), ("2", right)):
        _set_view(figure, traces, number, half, limit, flat)
    angle = _angle(run)
    words = [] if spans[-2] >= 0.02 * right else [("almost 0" if spans[-2] else "0", (0.0, -0.1 * right))]
    words += _set_arc(traces["angle"], shown[-1], shown[-2], angle, right)
    _set_labels(traces["labels"], shown[:k], 0.16 * left, avoid=shown[2 * k :][:1])
    _set_labels(traces["labels2"], clipped, 0.16 * right, avoid=shown[-2:], words=words)
    notes = {note.name: note for note in figure.layout.annotations}
    mine = "each rank's shard" if _shards(run) else "each rank's gradient"
    notes["caption"].text = f"<b>Before</b><br>{soft(f'colours: {mine}<br>black: {name}')}"
    beyond = ", outside" * (limit > 1.5 * right)
    key = f"black: average, then clip<br><span style='color:{REDUCED_EDGE}'>yellow: {WORDS[run.config['order']]}</span>"
    notes["caption2"].text = f"<b>The update</b>, circle: max_norm {limit:.3g}{beyond}<br>{soft(key)}"
    return _verdict(run, angle)


def _shards(run) -> bool:
    return run.config["gradients"] is not None and run.config["order"] in ("clip_each_shard", "clip_shards_together")


def _ranks_clip(run) -> bool:
    """Whether clipping the ranks' arrows one by one is what the order does."""
    given = run.config["gradients"] is not None
    return run.config["order"] in ("clip_then_average", *("clip_each_micro_batch", "clip_each_shard") * given)


def _local(run) -> np.ndarray:
    """(k, n): each rank's own gradient; where the rows are shards, each in its place and zero elsewhere."""
    if not _shards(run):
        return np.array([np.asarray(result["local"], dtype=float) for result in run.results])
    rows = run.config["gradients"]
    edges = np.cumsum([0, *map(len, rows)])
    local = np.zeros((len(rows), edges[-1]))
    for rank, row in enumerate(rows):
        local[rank, edges[rank] : edges[rank + 1]] = row
    return local


def _projected(vectors: np.ndarray, update: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(m, n) -> (m, 2). Two entries stay; more are drawn in a plane that holds reference and update, lengths kept."""
    if vectors.shape[1] == 2:
        return vectors
    plane = Plane(np.vstack([vectors, update]), reference)
    rest = update - plane.up * (update @ plane.up)
    if np.linalg.norm(rest) > SAME * np.linalg.norm(update):
        plane.across = rest / np.linalg.norm(rest)
    return plane.project(vectors) * plane.unit


def _set(trace: go.Scatter, tips: np.ndarray, texts: list[str], half: float) -> None:
    """Let the trace end at `tips`; the head of an arrow is no longer than the arrow is on a frame of `half`."""
    heads = [min(trace.meta, max(1.0, round(0.8 * PLOT * float(np.linalg.norm(tip)) / half, 1))) for tip in tips]
    trace.x = [value for tip in tips for value in (0.0, float(f"{tip[0]:.5g}"), None)]
    trace.y = [value for tip in tips for value in (0.0, float(f"{tip[1]:.5g}"), None)]
    trace.marker.size = [size for head in heads for size in (0, head, 0)]
    trace.hovertext = [text for text in texts for _ in range(3)]


def _set_edge(edge: go.Scatter, tip: np.ndarray, head: float, half: float) -> None:
    """A dark line under the shaft, which ends where the head begins."""
    span = PLOT * float(np.linalg.norm(tip)) / half
    shaft = max(0.0, 1 - 0.7 * min(head, 0.8 * span) / span) if span else 0.0
    edge.x, edge.y = ([0.0, float(f"{shaft * value:.5g}")] for value in tip)


def _set_ranks(traces: dict, side: str, tips: np.ndarray, texts: list[str], half: float) -> None:
    texts = [f"<b>rank {rank}</b> {text}" for rank, text in zip(range(len(tips)), texts, strict=False)]
    for rank in range(COLOURED):
        _set(traces[f"rank {rank}, {side}"], tips[rank : rank + 1], texts[rank : rank + 1], half)
    _set(traces[f"other ranks, {side}"], tips[COLOURED:], texts[COLOURED:], half)


def _set_view(figure: go.Figure, traces: dict, number: str, half: float, limit: float, flat: bool) -> None:
    circle = np.linspace(0, 2 * np.pi, 73) if limit <= 1.5 * half else np.array([])
    traces[f"limit{number}"].x = [float(f"{limit * value:.5g}") for value in np.cos(circle)]
    traces[f"limit{number}"].y = [float(f"{limit * value:.5g}") for value in np.sin(circle)]
    titles = ("1st entry", "2nd entry") if flat else ("across", "along average-then-clip's update")
    figure.layout[f"xaxis{number}"].update(range=[-half, half], dtick=step_above(half / 3), title_text=titles[0])
    figure.layout[f"yaxis{number}"].update(range=[-half, half], dtick=step_above(half / 3))
    figure.layout[f"yaxis{number}"].title.text = titles[1] * (not number)


def _set_labels(trace: go.Scatter, tips: np.ndarray, gap: float, *, avoid: np.ndarray, words=()) -> None:
    """Number the tips; `words` are further texts with their places."""
    places = place_labels(tips, gap=gap, avoid=avoid) if len(tips) else np.zeros((0, 2))
    places = np.vstack([places, *(place for _, place in words)])
    trace.x, trace.y = ([float(f"{value:.4g}") for value in column] for column in places.T)
    trace.text = [*(str(rank) for rank in range(len(tips))), *(text for text, _ in words)]
    trace.textfont.color = [*(rank_text_colour(rank) for rank in range(len(tips))), *[INK] * len(words)]


def _angle(run) -> float | None:
    angle = run.facts["angle_degrees"]
    return None if angle is None else 0.0 if angle < 0.05 else float(angle)


def _set_arc(arc: go.Scatter, reference: np.ndarray, update: np.ndarray, angle: float | None, half: float) -> list:
    """Draw an arc from the reference to the update, at 0.3 of the frame. Return its degrees as a text and a place, if
    there is room for them.
    """
    if not angle or min(np.linalg.norm(reference), np.linalg.norm(update)) < 0.3 * half:
        arc.x, arc.y = [], []
        return []
    start, end = (np.arctan2(vector[1], vector[0]) for vector in (reference, update))
    turn = (end - start + np.pi) % (2 * np.pi) - np.pi
    at = start + turn * np.linspace(0, 1, 25)
    arc.x = [round(0.3 * half * float(value), 5) for value in np.cos(at)]
    arc.y = [round(0.3 * half * float(value), 5) for value in np.sin(at)]
    middle = 0.42 * half * np.array([np.cos(at[12]), np.sin(at[12])])
    return [(f"{angle:.0f}°", middle)] if angle >= 20 else []


def _verdict(run, angle: float | None) -> Verdict:
    norm, reference = run.facts["norm"], run.facts["reference_norm"]
    instead = f"length {_written(norm)} instead of {_written(reference)}"
    agree = "Same on all ranks." if run.facts["ranks_identical"] else "Not the same on all ranks."
    if angle == 0 and abs(norm / reference - 1) < SAME or norm == reference == 0:
        how = "Averaged, then clipped" if run.config["order"] == "average_then_clip" else "The same update"
        html = f"<b>{how}:</b> length {norm:.3g}, the limit is {run.config['max_norm']:.3g}. {agree}"
        return Verdict(html=html, text=f"update right: yes, length {norm:.3g}", good=True)
    off = "" if angle is None else f"{angle:.0f}° off, " if angle else "same direction, "
    html = f"<b>Another update:</b> {off}{instead}. {agree}"
    return Verdict(html=html, text=f"update right: no, {off}{instead}", good=False)


def _written(length: float) -> str:
    """0.4924 as '0.492', 1.526e-5 as '1.526 × 10⁻⁵'."""
    if length == 0 or 1e-3 <= length < 1e5:
        return f"{length:.3g}"
    mantissa, exponent = f"{length:.3e}".split("e")
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
