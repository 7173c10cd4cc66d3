"""Ranks by micro-batches: where the ranks communicated, whose gradients that carried, and where the ranks part. Beside
it what an update costs: all-reduces, bytes, activations.

A run's records hold, for each rank and optimizer update, a Step with values["all_reduces_by_micro_batch"], the sampled
"parameters" and "parameters_before", and a "digest" of all of them. `facts` hold the numbers.
"""

from collections import Counter
from itertools import accumulate

import numpy as np
import plotly.graph_objects as go

from dpviz.figures import accumulation_costs as costs
from dpviz.figures.style import (
    INK,
    LINE,
    REDUCED,
    REDUCED_EDGE,
    SOFT_INK,
    axis,
    bytes_text,
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

RANKS = 8  # lines of their own; further ranks share a grey one
COLUMNS = 128  # micro-batches that are drawn
LEFT, MIDDLE, RIGHT = 0.585, 0.645, 0.765  # paper: where the grid ends, captions start, bars start
NARROW, ROWS = 380, 165  # px of the grid on a narrow page
KEY = "■ reaches every rank &nbsp;⊠ stays on its rank &nbsp;<b>●</b> all-reduce"


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 450 px high, as wide as its place."""
    figure = layout(go.Figure(), height=450, margin={"l": 62, "r": 12, "t": 50, "b": 46})
    boundary = {"mode": "lines", "line": {"color": LINE, "width": 1, "dash": "dot"}, "hoverinfo": "skip"}
    figure.add_trace(go.Scatter(name="updates", x=[], y=[], **boundary))
    figure.add_trace(go.Scatter(name="updates below", x=[], y=[], xaxis="x2", yaxis="y2", **boundary))
    line = {"color": REDUCED_EDGE, "width": 3}
    figure.add_trace(go.Scatter(name="collectives", x=[], y=[], mode="lines", line=line, hoverinfo="skip"))
    for name, symbol in (("reaches every rank", "square"), ("stays on its rank", "square-x-open")):
        figure.add_trace(_markers(name, symbol, {"width": 1.5}))
    figure.add_trace(_markers("all-reduce", "circle", {"color": REDUCED_EDGE, "width": 1.5}))
    figure.data[-1].marker.color = REDUCED
    for rank in range(RANKS):
        figure.add_trace(_line(f"rank {rank}", rank_colour(rank), rank_dash(rank)))
    figure.add_trace(_line("other ranks", "#8a8a8a", "dot"))
    for name, where in (("labels", {"xaxis": "x2", "yaxis": "y2"}), ("numbers", {})):
        figure.add_trace(
            text_trace(
                name,
                textposition="middle right" if name == "labels" else "middle center",
                textfont={"color": [] if name == "labels" else SOFT_INK},
                **where,
            )
        )
    figure.update_layout(
        xaxis=axis(domain=[0, LEFT], anchor="y", range=[0.5, 8.5], showgrid=False),
        yaxis=axis(domain=[0.53, 0.93], range=[3.6, -1], showgrid=False),
        xaxis2=axis(domain=[0, LEFT], anchor="y2", range=[0.5, 8.5], showgrid=False, showticklabels=False),
        yaxis2=axis(domain=[0, 0.335], anchor="x2", range=[-1, 1], zeroline=True, zerolinecolor=LINE),
    )
    figure.layout.xaxis2.title.text = "micro-batches in order; dotted: the optimizer's update"
    figure.add_annotation(caption(f"<b>Micro-batches of each rank</b><br>{soft(KEY)}", x=0, y=0.945, name="grid"))
    figure.add_annotation(caption("", x=0, y=0.345, name="lines"))
    costs.add_bytes(figure, axes="3", x=[RIGHT, 1], y=[0.77, 0.86], left=MIDDLE)
    costs.add_activations(figure, axes="4", x=[RIGHT, 1], y=[0, 0.46], left=MIDDLE)
    return figure


def _markers(name: str, symbol: str, line: dict) -> go.Scatter:
    marker = {"symbol": symbol, "size": 10, "color": [], "line": line}
    return go.Scatter(name=name, x=[], y=[], mode="markers", marker=marker, hovertext=[], hoverinfo="text")


def _line(name: str, colour: str, dash: str) -> go.Scatter:
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        mode="lines",
        line={"color": colour, "width": 2.5, "dash": dash, "shape": "hv"},
        hovertext=[],
        hoverinfo="text",
        xaxis="x2",
        yaxis="y2",
        cliponaxis=False,
    )


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say what it shows."""
    calls = [[step.values["all_reduces_by_micro_batch"] for step in records] for records in run.records]
    ends = [end for end in accumulate(len(window) for window in calls[0]) if end <= COLUMNS]
    columns, updates = ends[-1], len(ends)
    _draw_grid(figure, [rank[:updates] for rank in calls], ends)
    _draw_lines(figure, run, ends)
    right = 0.5 + columns * 1.13
    for name in ("xaxis", "xaxis2"):
        figure.layout[name].range = [0.5 - 0.01 * columns, right]
    costs.draw_bytes(figure, run)
    costs.draw_activations(figure, run)
    return _verdict(run, calls)


def _draw_grid(figure: go.Figure, calls: list, ends: list[int]) -> None:
    k, traces = len(calls), {trace.name: trace for trace in figure.data}
    cells, dots, numbers = {True: [], False: []}, [], []
    for rank, windows in enumerate(calls):
        for update, window in enumerate(windows):
            first = ends[update] - len(window)
            for i, count in enumerate(window):
                reaches = any(window[i:])
                where = f"rank {rank}, update {update + 1}, micro-batch {i + 1} of {len(window)}"
                fate = "an all-reduce carries it to every rank" if reaches else "no all-reduce follows: it stays here"
                cells[reaches].append((first + i + 1, rank, f"{where}<br>{fate}"))
                if count:
                    plural = "s" * (count > 1)
                    dots.append((first + i + 1.4, rank, f"{where}<br>{count} all-reduce{plural} in its backward"))
                if rank == 0 and ends[-1] <= 32:
                    numbers.append((first + i + 1, str(i + 1)))
    size = max(3.0, min(20.0, 0.62 * NARROW / (1.13 * ends[-1]), 0.6 * ROWS / k))
    marked = len({x for x, *_ in dots}) or 1
    dot = max(0.62 * size, min(9.0, 0.62 * NARROW / marked, 0.6 * ROWS / k))
    for name, some, wide in (
        ("reaches every rank", cells[True], size),
        ("stays on its rank", cells[False], size),
        ("all-reduce", dots, dot),
    ):
        trace = traces[name]
        trace.x, trace.y, trace.hovertext = (
            (list(column) for column in zip(*some, strict=True)) if some else ([], [], [])
        )
        trace.marker.size = round(wide, 1)
        trace.marker.line.width = 1.5 if wide > 8 else 0.5
        if name != "all-reduce":
            trace.marker.color = [rank_colour(rank) for _, rank, _ in some]
    at = sorted(x for x, count in Counter(x for x, *_ in dots).items() if count == k)
    lines = traces["collectives"]
    lines.x, lines.y = [v for x in at for v in (x, x, None)], [-0.3, k - 0.7, None] * len(at)
    lines.line.width = 3 if dot > 8 else 1.5
    bounds = [end + 0.5 for end in ends] if len(ends) <= 32 else []
    row = k / 4
    for name, low, high in (("updates", -0.5 - 0.5 * row, k - 0.5), ("updates below", -9e9, 9e9)):
        traces[name].x = [v for x in bounds for v in (x, x, None)]
        traces[name].y = [low, high, None] * len(bounds)
    traces["numbers"].x = [x for x, _ in numbers]
    traces["numbers"].y = [-0.5 - 0.28 * row] * len(numbers)
    traces["numbers"].text = [text for _, text in numbers]
    figure.layout.yaxis.range = [k - 0.4, -0.5 - 0.55 * row]
    shown = list(range(0, k, max(1, -(-k // 10))))
    figure.layout.yaxis.update(tickvals=shown, ticktext=[f"rank {rank}" for rank in shown])
    figure.layout.xaxis.update(tickvals=[], ticktext=[])


def _draw_lines(figure: go.Figure, run, ends: list[int]) -> None:
    values = _drift(run, len(ends))
    k, updates = len(values), len(ends)
    digests = [records[updates - 1].values["digest"][:4] for records in run.records]
    alike = len(set(digests)) == 1
    traces = {trace.name: trace for trace in figure.data}
    bounds = [0.5, *(end + 0.5 for end in ends), 0.5 + ends[-1] * 1.03]
    for number in range(RANKS + 1):
        trace = traces[f"rank {number}" if number < RANKS else "other ranks"]
        ranks = [number] if number < min(k, RANKS) else range(RANKS, k) if number == RANKS else []
        trace.x = [x for _ in ranks for x in (*bounds, None)]
        trace.y = [y for rank in ranks for y in (*values[rank], values[rank][-1], None)]
        trace.hovertext = [
            text
            for rank in ranks
            for text in (*(f"rank {rank}, after {n} updates: {y:+.4g}" for n, y in enumerate(values[rank])), "", "")
        ]
        # where all agree the lines lie on each other: wide below narrow, so that each is seen
        trace.line.width = 2.5 + min(1.6, 6 / k) * (min(k, RANKS) - number) if alike and number < k else 2.5
    low, high = min(values.min(), 0), max(values.max(), 0)
    tick = step_above(max(high - low, 1e-12)) / 2
    bottom, top = np.floor(low / tick), np.ceil(high / tick)
    margin = 0.16 * (top - bottom)
    ticks = [float(f"{tick * n:.6g}") for n in range(int(bottom), int(top) + 1)]
    figure.layout.yaxis2.update(
        range=[float(tick * (bottom - margin)), float(tick * (top + margin))],
        tickvals=ticks,
        ticktext=[f"{t:.4g}" for t in ticks],
    )
    gap = 0.14 * tick * (top - bottom + 2 * margin)
    _set_labels(traces["labels"], values[:, -1], 0.5 + ends[-1] * 1.04, digests, gap)
    note = next(note for note in figure.layout.annotations if note.name == "lines")
    said = "the same fingerprint of all parameters" if alike else "fingerprints of all parameters differ"
    note.text = f"<b>A parameter on each rank</b>, change since the start<br>{soft(f'at the end: {said}')}"


def _drift(run, updates: int) -> np.ndarray:
    """(k, 1 + updates): the change since the start of that sampled parameter whose ranks are told apart best; where
    they agree, of the one that moves the most.
    """
    sampled = np.array(
        [
            [records[0].values["parameters_before"], *(step.values["parameters"] for step in records[:updates])]
            for records in run.records
        ],
        dtype=float,
    )
    change = sampled - sampled[:, :1]
    end = change[:, -1]
    height = np.maximum(end.max(axis=0), 0) - np.minimum(end.min(axis=0), 0)  # of the axis that it will need
    gap = np.diff(np.sort(end, axis=0), axis=0).min(axis=0, initial=np.inf)
    apart = (np.ptp(end, axis=0) + 4 * len(end) * gap) / np.maximum(height, 1e-12)
    which = int(np.argmax(apart if np.ptp(end, axis=0).any() else height))
    return np.array([[float(f"{value:.6g}") for value in row] for row in change[:, :, which]])


def _set_labels(labels: go.Scatter, last: np.ndarray, x: float, digests: list[str], gap: float) -> None:
    groups: list[list[int]] = []  # ranks whose lines end in one place share a label
    for rank in np.argsort(last, kind="stable"):
        if groups and last[rank] - last[groups[-1][0]] < gap:
            groups[-1].append(int(rank))
        else:
            groups.append([int(rank)])
    same = [len({digests[rank] for rank in group}) == 1 for group in groups]
    names = [
        "all"
        if one and len(group) == len(last) > 1
        else ", ".join(map(str, sorted(group[:5]))) + "…" * (len(group) > 5)
        for group, one in zip(groups, same, strict=True)
    ]
    labels.x, labels.y = [x] * len(groups), [float(f"{last[group].mean():.6g}") for group in groups]
    labels.text = [
        f"<b>{name}</b> {digests[group[0]]}" if one else f"<b>{name}</b>"
        for name, group, one in zip(names, groups, same, strict=True)
    ]
    labels.textfont.color = [rank_text_colour(group[0]) if len(group) == 1 else INK for group in groups]


def _verdict(run, calls: list) -> Verdict:
    facts, config = run.facts, run.config
    k, steps, all_reduces = len(run.results), int(config["accumulation_steps"]), int(facts["all_reduces"])
    counted = f"{all_reduces} all-reduce{'s' * (all_reduces != 1)}"
    sent = f" and {bytes_text(max(facts['wire_bytes']))} a rank" if k > 1 else ""
    equal, identical = bool(facts["gradients_equal"]), bool(facts["ranks_identical"])
    text = f"gradient right: {'yes' if equal else 'no'}, {counted}, ranks identical: {'yes' if identical else 'no'}"
    batch = f"{k} × {steps} × {1 if config.get('inputs') else config['micro_batch']} = {facts['samples']} samples"
    if not identical:
        window = calls[0][0]
        home = sum(not any(window[i:]) for i in range(len(window)))
        html = (
            f"<b>Wrong, with {counted}:</b> {home} of {len(window)} micro-batches stay on their rank, "
            f"and the ranks part at update {int(facts['first_divergent_step']) + 1}."
        )
        return Verdict(html=html, text=text, good=False)
    if not equal:
        scales = [float(scale) for scale in facts["gradient_scale_by_update"]]
        worst = max(range(len(scales)), key=lambda i: abs(scales[i] - 1))
        times = f"{scales[worst]:.3g} times its due"
        html = f"<b>Wrong alike on every rank:</b> the gradient of update {worst + 1} is {times}."
        return Verdict(html=html, text=text, good=False)
    if all_reduces > 1:
        html = f"<b>Right, but {counted} an update</b>{sent} where 1 would do; {batch}."
        return Verdict(html=html, text=text)
    return Verdict(html=f"<b>Right, with {counted} an update</b>{sent}; k × K × B = {batch}.", text=text, good=True)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title, its environment below."""
    figure = make()
    return titled(figure, draw(figure, run), run)
