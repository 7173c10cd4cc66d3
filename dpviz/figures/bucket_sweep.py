"""How long backward takes by the size of its buckets: measured with least and most, what only computing takes as a
floor, and what lies between them shaded, since the overlap did not hide it.

A run of `buckets` is one point. Runs that differ in more than the cap (ranks, link, small tensors, implementation) are
lines of their own.
"""

import math

import plotly.graph_objects as go

from dpviz.figures.style import (
    INK,
    RANK_COLOURS,
    SOFT_INK,
    apart,
    axis,
    caption,
    layout,
    rank_text_colour,
    soft,
    step_above,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

MOST = 4  # lines
SYMBOLS = ("circle", "square", "diamond", "triangle-up")
EXPOSED = "rgba(213, 94, 0, 0.13)"
ALIKE = 1.05  # times the best median: no worse than the best
KEY = "median with least and most; ring: best"
KEY_OF_ONE = f"{KEY}; grey: computing alone; shaded: exposed"


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high, with room for four lines."""
    figure = layout(go.Figure(), height=420, margin={"l": 62, "r": 118, "t": 58, "b": 48})
    figure.add_trace(
        go.Scatter(name="exposed", x=[], y=[], mode="none", fill="toself", fillcolor=EXPOSED, hoverinfo="skip")
    )
    figure.add_trace(_line("computing alone", SOFT_INK, dash="dash", symbol="line-ew-open"))
    for number in range(MOST):
        figure.add_trace(_line(f"line {number}", RANK_COLOURS[number], symbol=SYMBOLS[number]))
    ring = {"symbol": "circle-open", "size": 20, "color": INK, "line": {"width": 2}}
    now = {"symbol": "star", "size": 15, "color": "#F0E442", "line": {"color": INK, "width": 1.5}}
    for name, marker in (("best", ring), ("now", now)):
        more = {"mode": "markers", "marker": marker, "hovertext": [], "cliponaxis": False}
        figure.add_trace(go.Scatter(name=name, x=[], y=[], hoverinfo="text" if name == "now" else "skip", **more))
    figure.add_trace(text_trace("labels", textposition="middle right"))
    figure.update_layout(
        xaxis=axis("bucket cap, MiB", type="log", tickvals=[], ticktext=[], range=[-1, 2]),
        yaxis=axis("backward, milliseconds", range=[0, 100]),
        annotations=[caption("", x=0, y=1.025)],
    )
    return figure


def _line(name: str, colour: str, *, symbol: str, dash: str = "solid") -> go.Scatter:
    bars = {"type": "data", "symmetric": False, "array": [], "arrayminus": [], "color": colour, "thickness": 1.5}
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        mode="lines+markers",
        line={"color": colour, "width": 2 if dash == "solid" else 1.5, "dash": dash},
        marker={"symbol": symbol, "size": 9, "color": colour, "line": {"color": colour, "width": 1.5}},
        error_y=bars | {"width": 4},
        hovertext=[],
        hoverinfo="text",
    )


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show a list of runs, or one, and say which cap is best."""
    runs = list(run) if isinstance(run, list | tuple) else [run]
    return _draw(figure, runs, now=None)


def _draw(figure: go.Figure, runs: list, now) -> Verdict:
    groups = _groups(runs)
    traces = {trace.name: trace for trace in figure.data}
    for number in range(MOST):
        _set_line(traces[f"line {number}"], groups[number] if number < len(groups) else [], "backward")
    only = groups[0] if len(groups) == 1 else []
    _set_line(traces["computing alone"], only, "compute")
    floor, upper = ([_point(one, name) for one in only] for name in ("compute", "backward"))
    below = [(x, min(y, most)) for (x, y), (_, most) in zip(floor, upper, strict=True)]
    outline = [*upper, *reversed(below)] if len(only) > 1 else []
    traces["exposed"].x, traces["exposed"].y = ([point[i] for point in outline] for i in (0, 1))
    bests = [min(group, key=lambda one: one.facts["backward_s"]) for group in groups if len(group) > 1]
    traces["best"].x, traces["best"].y = ([_point(one, "backward")[i] for one in bests] for i in (0, 1))
    shown = [now] if now else []
    traces["now"].x, traces["now"].y = ([_point(one, "backward")[i] for one in shown] for i in (0, 1))
    traces["now"].hovertext = [f"<b>now:</b> {_told(one, 'backward')}" for one in shown]
    highest = 1.25e3 * max(one.facts["backward_s"] for one in [*runs, *shown])  # an outlier may leave through the top
    top = step_above(highest, (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
    right = _draw_axes(figure, [*runs, *shown], top)
    _draw_labels(traces["labels"], groups, top, right)
    figure.layout.annotations[0].text = f"<b>Time of backward</b><br>{soft(KEY_OF_ONE if only else KEY)}"
    return _verdict(groups, bests, now)


def _groups(runs: list) -> list[list]:
    """One list for each setting beside the cap, in the order in which they come; each sorted by the cap."""
    groups: dict[tuple, list] = {}
    for run in runs:
        groups.setdefault(_setting(run), []).append(run)
    if not 1 <= len(groups) <= MOST:
        raise ValueError(f"the runs belong to {len(groups)} settings, but 1 to {MOST} can be told apart. Show fewer.")
    return [sorted(group, key=_cap) for group in groups.values()]


def _setting(run) -> tuple:
    """(ranks, link in Gb/s, small tensors, implementation)"""
    return (
        run.environment.world_size,
        run.environment.link_gbps,
        run.config["small_tensors"],
        run.config["implementation"],
    )


def _cap(run) -> float:
    return float(run.config["bucket_cap_mb"])


def _point(run, name: str) -> tuple[float, float]:
    return _cap(run), round(1e3 * float(run.facts[f"{name}_s"]), 3)


def _set_line(trace: go.Scatter, runs: list, name: str) -> None:
    points = [_point(run, name) for run in runs]
    trace.x, trace.y = [x for x, _ in points], [y for _, y in points]
    ranges = [[1e3 * float(value) for value in run.facts[f"{name}_range_s"]] for run in runs]
    trace.error_y.array = [round(high - y, 3) for (_, high), (_, y) in zip(ranges, points, strict=True)]
    trace.error_y.arrayminus = [round(y - low, 3) for (low, _), (_, y) in zip(ranges, points, strict=True)]
    trace.hovertext = [_told(run, name) for run in runs]


def _told(run, name: str) -> str:
    facts = run.facts
    low, high = facts[f"{name}_range_s"]
    count = len(facts["bucket_bytes"])
    buckets = f"{count} bucket{'s' * (count != 1)} of at most {_cap(run):g} MiB"
    what = "backward" if name == "backward" else "computing alone"
    seconds = f"{what} {1e3 * facts[f'{name}_s']:.1f} ms ({1e3 * low:.1f} to {1e3 * high:.1f})"
    return f"<b>{buckets}</b><br>{seconds}"


def _draw_labels(trace: go.Scatter, groups: list[list], top: float, right: float) -> None:
    rows = [(_point(group[-1], "backward")[1], rank_text_colour(number)) for number, group in enumerate(groups)]
    names = [f"<b>{name}</b>" for name in _names(groups)]
    if len(groups) == 1:
        rows.append((_point(groups[0][-1], "compute")[1], SOFT_INK))
        names.append("computing alone")
    places = apart([y for y, _ in rows], gap=0.055 * top, low=0.03 * top, high=0.97 * top)
    trace.x, trace.y = [right] * len(rows), [round(y, 3) for y in places]
    trace.text, trace.textfont.color = names, [colour for _, colour in rows]


def _names(groups: list[list]) -> list[str]:
    """What tells the settings apart; of a single one, that it is backward."""
    if len(groups) == 1:
        return ["backward"]
    texts = [
        (
            f"k = {k}",
            f"{gbps:g} Gb/s" if gbps else "no link",
            f"{small} small tensors" if small else "no small tensors",
            how.replace("_", " "),
        )
        for k, gbps, small, how in (_setting(group[0]) for group in groups)
    ]
    differs = [len(set(column)) > 1 for column in zip(*texts, strict=True)]
    return [", ".join(text for text, yes in zip(row, differs, strict=True) if yes) for row in texts]


def _draw_axes(figure: go.Figure, runs: list, top: float) -> float:
    """Set both axes, and return where on the x axis the labels begin."""
    caps = sorted({_cap(run) for run in runs})
    low, high = (math.log10(cap) for cap in (caps[0], caps[-1]))
    margin = max(0.06 * (high - low), 0.1)
    shown = caps if len(caps) <= 12 else caps[:: -(-len(caps) // 12)]
    figure.layout.xaxis.update(range=[low - margin, high + margin], tickvals=shown, ticktext=[f"{c:g}" for c in shown])
    figure.layout.yaxis.range = [0, top]
    return float(f"{10 ** (high + 0.99 * margin):.5g}")


def _verdict(groups: list[list], bests: list, now) -> Verdict:
    if now or not bests:
        run = now or groups[0][0]
        exposed, took = (_ms(max(0.0, run.facts[name])) for name in ("exposed_s", "backward_s"))
        html = f"<b>{took} with a cap of {_cap(run):g} MiB</b>, {exposed} of it exposed."
        return Verdict(html=html, text=f"cap {_cap(run):g} MiB, {len(run.facts['bucket_bytes'])} buckets")
    group, best = next(group for group in groups if len(group) > 1), bests[0]
    caps = " to ".join(f"{cap:g}" for cap in _alike(group, best)) + " MiB"
    worst = max(group, key=lambda one: one.facts["backward_s"])
    slower = worst.facts["backward_s"] / best.facts["backward_s"]
    which = f" ({_names(groups)[groups.index(group)]})" if len(groups) > 1 else ""
    took = f"{_ms(best.facts['backward_s'])}; {_cap(worst):g} MiB takes {slower:.2f} times that."
    html = f"<b>Best at {caps}{which}:</b> {took}"
    return Verdict(html=html, text=f"{len(group)} caps, {len(groups)} line{'s' * (len(groups) > 1)}")


def _alike(group: list, best) -> list[float]:
    """The first and last cap of the stretch around the best one that is no slower; or the best alone."""
    good = [one.facts["backward_s"] <= ALIKE * best.facts["backward_s"] for one in group]
    first = last = group.index(best)
    while first and good[first - 1]:
        first -= 1
    while last + 1 < len(group) and good[last + 1]:
        last += 1
    return sorted({_cap(group[first]), _cap(group[last])})


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def show(runs) -> go.Figure:
    """The figure of a list of runs, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, runs), runs)


class Marked:
    """For a panel: the sweep of `runs` stays, and a star marks the newest run.

    dp.panel(experiment, config, figure=bucket_sweep.Marked(runs), controls=["bucket_cap_mb"])
    """

    def __init__(self, runs: list):
        self.runs = list(runs)

    def make(self) -> go.Figure:
        figure = make()
        draw(figure, self.runs)
        return figure

    def draw(self, figure: go.Figure, run) -> Verdict:
        return _draw(figure, self.runs, now=run)
