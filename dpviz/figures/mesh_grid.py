"""The mesh as a grid: a card a replica of the model, in it a row a pipeline stage and a column a rank that shares them.

Where each rank stands comes from the run (results[rank]["at"]). Colours tell who reads the same data or who holds the
same part of the model; the buttons choose, and light up the group of rank 0 along an axis. They work in the browser.
"""

import math

import plotly.graph_objects as go

from dpviz.figures.style import (
    INK,
    LINE,
    SMALL,
    SOFT_INK,
    axis,
    caption,
    ink_on,
    rank_colour,
    rank_pattern,
    text_trace,
)

COLOURS = ("data", "parameters")
LIGHTS = ("dp", "tp", "pp", "cp", "ep", "shard")
CARD, VEIL, CLEAR = "#f1f3f5", "rgba(255,255,255,0.82)", "rgba(255,255,255,0)"
WIDE, HIGH = 0.92, 0.86  # of a cell
HATCH = {"shape": [], "fillmode": "overlay", "fgcolor": "#ffffff", "fgopacity": 0.45, "size": 7, "solidity": 0.25}
AIR = {"cp": 0.12, "ep": 0.24, "dp": 0.5}  # between ranks of another cp, ep or dp
BUTTONS_Y = 0.415


def add(figure: go.Figure, *, y: list[float]) -> None:
    """Add the traces on axes x and y, and the buttons under them; y is the domain."""
    figure.add_trace(_boxes("cards", marker={"color": CARD, "line": {"color": LINE, "width": 1}}, hoverinfo="skip"))
    for kind in COLOURS:
        marker = {"color": [], "line": {"color": INK, "width": 1}, "pattern": HATCH}
        figure.add_trace(_boxes(f"by {kind}", marker=marker, hovertext=[], hoverinfo="text"))
        figure.add_trace(text_trace(f"ranks by {kind}", textfont={"size": 13, "color": []}))
    for name in LIGHTS:
        marker = {"color": [], "line": {"color": INK, "width": []}}
        figure.add_trace(_boxes(f"light {name}", marker=marker, hoverinfo="skip", visible=False))
    figure.add_trace(text_trace("places", textfont={"size": SMALL, "color": SOFT_INK}, textposition=[]))
    for trace in figure.data:
        if trace.name.endswith("by parameters"):
            trace.visible = False
    plain = {"showgrid": False, "showticklabels": False, "showline": False, "ticks": ""}
    figure.update_layout(
        barmode="overlay", xaxis=axis(range=[0, 8], **plain), yaxis=axis(domain=y, range=[-2, 1], **plain)
    )
    _add_buttons(figure)


def _boxes(name: str, **more) -> go.Bar:
    return go.Bar(name=name, x=[], y=[], base=[], width=[], textposition="none", **more)


def _add_buttons(figure: go.Figure) -> None:
    places = {trace.name: number for number, trace in enumerate(figure.data)}
    lights = [places[f"light {name}"] for name in LIGHTS]
    colours = [places[f"{what} {kind}"] for kind in COLOURS for what in ("by", "ranks by")]
    look = {
        "type": "buttons",
        "direction": "right",
        "y": BUTTONS_Y,
        "yanchor": "top",
        "pad": {"t": 0, "l": 0},
        "bgcolor": "#ffffff",
        "bordercolor": "#9fb0bd",
        "font": {"size": SMALL, "color": INK},
    }
    switch = [
        {"label": name, "method": "restyle", "args": [{"visible": [one == name for one in LIGHTS]}, lights]}
        for name in ("none", *LIGHTS)
    ]
    paint = [
        {
            "label": kind,
            "method": "restyle",
            "args": [{"visible": [one == kind for one in COLOURS for _ in range(2)]}, colours],
        }
        for kind in COLOURS
    ]
    figure.update_layout(
        updatemenus=[
            {**look, "x": 0, "xanchor": "left", "pad": {"l": 96}, "buttons": switch, "name": "light"},
            {**look, "x": 1, "xanchor": "right", "buttons": paint, "name": "colour"},
        ]
    )
    words = {"y": BUTTONS_Y, "yanchor": "top", "font": {"size": SMALL, "color": SOFT_INK}, "yshift": -6}
    figure.add_annotation(caption("rank 0's group", x=0, **words))
    figure.add_annotation(caption("colour by", x=1, xanchor="right", xshift=-146, **words))


def draw(figure: go.Figure, run) -> None:
    """Place the run's ranks."""
    config, ranks = run.config, range(len(run.results))
    at = [result["at"] for result in run.results]
    traces = {trace.name: trace for trace in figure.data}
    x = [_column(one, config) for one in at]
    stages = config["pp"]
    _draw_cards(traces["cards"], x, at, stages)
    for kind in COLOURS:
        shard = [_data(one) if kind == "data" else _parameters(one, config) for one in at]
        cells, words = traces[f"by {kind}"], traces[f"ranks by {kind}"]
        _set(cells, [(x[r], -at[r]["pp"], WIDE, HIGH) for r in ranks])
        cells.marker.color = [rank_colour(one) for one in shard]
        cells.marker.pattern.shape = [rank_pattern(one) for one in shard]
        cells.hovertext = [_hover(run, r) for r in ranks]
        words.x, words.y = x, [-one["pp"] for one in at]
        words.text = [f"<b>{'rank ' * (len(set(x)) <= 6)}{r}</b>" for r in ranks]
        words.textfont.color = [ink_on(rank_colour(one)) for one in shard]
    for name in LIGHTS:
        lit = next((g for g in run.facts["groups"].get(name, [[0]]) if 0 in g), [0])
        light = traces[f"light {name}"]
        _set(light, [(x[r], -at[r]["pp"], WIDE, HIGH) for r in ranks])
        light.marker.color = [CLEAR if r in lit else VEIL for r in ranks]
        light.marker.line.width = [4 if r in lit else 0 for r in ranks]
    _draw_places(traces["places"], x, at, config)
    left, right = min(x) - 0.5, max(x) + 0.5
    spare = max(0.0, 6 - (right - left)) / 2 + 0.25  # a mesh of one rank does not fill the figure
    figure.layout.xaxis.range = [left - spare - 0.6 * (stages > 1), right + spare]
    low, high, line = 0.4 - stages, 0.6, 0.1 * max(stages, 1.4)
    figure.layout.yaxis.range = [low - line * (0.2 + _below(config)), high + 1.3 * line]


def _column(at: dict, config: dict) -> float:
    """Where a rank stands from left to right: tp innermost, then cp, ep where it has an axis, and dp."""
    x, width = float(at["tp"]), config["tp"]
    x += at["cp"] * (width + AIR["cp"])
    width = config["cp"] * (width + AIR["cp"])
    if config["expert_axis"] == "separate":
        x += at.get("ep", 0) * (width + AIR["ep"])
        width = config["ep"] * (width + AIR["ep"])
    return x + at["dp"] * (width + AIR["dp"])


def _data(at: dict) -> int:
    return at["dp"]


def _parameters(at: dict, config: dict) -> int:
    return (at["pp"] * config["tp"] + at["tp"]) * config["shard"] + at.get("shard", 0)


def _draw_cards(trace: go.Bar, x: list[float], at: list[dict], stages: int) -> None:
    cards = []
    for replica in sorted({one["dp"] for one in at}):
        mine = [place for place, one in zip(x, at, strict=True) if one["dp"] == replica]
        cards.append(((min(mine) + max(mine)) / 2, (1 - stages) / 2, max(mine) - min(mine) + 1.16, stages + 0.12))
    _set(trace, cards)


def _draw_places(trace: go.Scatter, x: list[float], at: list[dict], config: dict) -> None:
    """Over each card its replica, at the left the stages, below the columns what else they are."""
    words = []
    for replica in range(config["dp"]):
        mine = [place for place, one in zip(x, at, strict=True) if one["dp"] == replica]
        samples = config["micro_batch"] * config["accumulation_steps"]
        text = {True: f"<b>dp {replica}</b>, {samples} samples", False: f"<b>{replica}</b>"}[config["dp"] <= 4]
        text = f"<b>dp {replica}</b>" if 4 < config["dp"] <= 8 else text
        words.append(((min(mine) + max(mine)) / 2, 0.56, text, "top center"))
    if config["pp"] > 1:
        words += [(min(x) - 0.66, -stage, f"stage {stage}", "middle left") for stage in range(config["pp"])]
    if _below(config):
        for place, one in {place: one for place, one in zip(x, at, strict=True)}.items():
            named = [f"{name} {one[name]}" for name in _within(config) if config[name] > 1]
            words.append((place, 0.42 - config["pp"], "<br>".join(named), "bottom center"))
    trace.x, trace.y, trace.text, trace.textposition = (list(column) for column in zip(*words, strict=True))


def _below(config: dict) -> int:
    """Lines under the columns; none where they are too narrow for words."""
    columns = config["dp"] * math.prod(config[name] for name in _within(config))
    return sum(config[name] > 1 for name in _within(config)) if columns <= 8 else 0


def _within(config: dict) -> tuple[str, ...]:
    """The axes along which the columns of one replica lie."""
    return ("tp", "cp", "ep") if config["expert_axis"] == "separate" else ("tp", "cp")


def _hover(run, rank: int) -> str:
    result, facts = run.results[rank], run.facts
    place = ", ".join(f"{name} {index}" for name, index in result["at"].items())
    read = f"reads {facts['samples_read'][rank]} samples, {facts['tokens_read'][rank]} tokens"
    held = f"computes with {facts['parameters_per_rank'][rank]:,} of {facts['parameters']:,} parameters"
    mine = {axis: next(g for g in groups if rank in g) for axis, groups in facts["groups"].items()}
    others = [f"{axis} group: {', '.join(map(str, group))}" for axis, group in mine.items() if len(group) > 1]
    return "<br>".join([f"<b>rank {rank}</b>: {place}", read, held, *others])


def _set(trace: go.Bar, boxes: list[tuple[float, float, float, float]]) -> None:
    """Boxes as (middle x, middle y, width, height)."""
    trace.x, trace.y = [box[0] for box in boxes], [box[3] for box in boxes]
    trace.base, trace.width = [box[1] - box[3] / 2 for box in boxes], [box[2] for box in boxes]
