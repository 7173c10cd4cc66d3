"""How long a collective takes by the size of its payload, on log axes: a line a link speed, each with its fit and with
what its bytes would take at the link's rate.

A run of `all_reduce` is one line. The facts hold payload_bytes, seconds and formula_seconds, one entry a size, and
call_s, latency_s and bandwidth_bytes_per_s of the fit.
"""

import math

import plotly.graph_objects as go

from dpviz.figures.style import (
    RANK_COLOURS,
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

MOST = len(RANK_COLOURS)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon")
KEY = "points: measured, median with least and most; dashed: fit; dotted: bytes ÷ link rate"
LINE = 0.105  # of the y axis' length: two lines of a label


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high, with room for six runs."""
    figure = layout(go.Figure(), height=420, margin={"l": 84, "r": 104, "t": 58, "b": 48})
    for number in range(MOST):
        colour = RANK_COLOURS[number]
        for name, dash in (("rate", "dot"), ("fit", "dash")):
            line = {"color": colour, "width": 1.5, "dash": dash}
            figure.add_trace(
                go.Scatter(name=f"{name} {number}", x=[], y=[], mode="lines", line=line, hovertext=[], hoverinfo="text")
            )
        marker = {"symbol": SYMBOLS[number], "size": 9, "color": colour}
        bars = {"type": "data", "symmetric": False, "array": [], "arrayminus": [], "color": colour, "thickness": 1.5}
        figure.add_trace(
            go.Scatter(
                name=f"measured {number}",
                x=[],
                y=[],
                mode="lines+markers",
                line={"color": colour, "width": 2},
                marker=marker,
                error_y=bars | {"width": 4},
                hovertext=[],
                hoverinfo="text",
            )
        )
    figure.add_trace(text_trace("labels", textposition="middle right"))
    figure.update_layout(
        xaxis=axis("payload S", type="log", tickvals=[], ticktext=[], range=[3, 8]),
        yaxis=axis("time of one call", type="log", tickvals=[], ticktext=[], range=[-4, 0]),
        annotations=[caption("", x=0, y=1.025, name="key")],
    )
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, or a list of up to six runs, and say what the fit found."""
    runs = run if isinstance(run, list | tuple) else [run]
    if not 1 <= len(runs) <= MOST:
        raise ValueError(f"{len(runs)} runs were given, but 1 to {MOST} can be told apart. Compare fewer.")
    runs = sorted(runs, key=lambda one: one.environment.link_gbps or math.inf)
    traces = {trace.name: trace for trace in figure.data}
    sizes = [size for one in runs for size in one.facts["payload_bytes"]]
    times = [spread[name] for one in runs for spread in one.facts["seconds"] for name in ("min", "max")]
    low, high = math.log10(min(sizes)) - 0.12, math.log10(max(sizes)) + 0.08
    # four decades at least, always the same ones: on another link the line moves, not the axis
    decades = [min(-4, math.floor(math.log10(min(times)))), max(0, math.ceil(math.log10(max(times))))]
    for number in range(MOST):
        one = runs[number] if number < len(runs) else None
        _draw_measured(traces[f"measured {number}"], one)
        _draw_fit(traces[f"fit {number}"], one)
        _draw_rate(traces[f"rate {number}"], one)
    _draw_labels(traces["labels"], runs, decades, high)
    ticks = [1 << n for n in range(0, 40, 2) if low < math.log10(1 << n) < high]
    figure.layout.xaxis.update(range=[low, high], tickvals=ticks, ticktext=[binary_text(tick) for tick in ticks])
    values = [10.0**n for n in range(decades[0], decades[1] + 1)]
    figure.layout.yaxis.update(range=decades, tickvals=values, ticktext=[_time(value) for value in values])
    note = next(note for note in figure.layout.annotations if note.name == "key")
    config, k = runs[0].config, runs[0].environment.world_size
    what = f"{config['algorithm']} {config['collective'].replace('_', '-')}, {k} rank{'s' * (k > 1)}"
    note.text = f"<b>Time of {what}</b><br>{soft(KEY)}"
    return _verdict(runs)


def _draw_measured(trace: go.Scatter, run) -> None:
    spreads = run.facts["seconds"] if run else []
    trace.x = _sizes(run)
    trace.y = [_rounded(spread["median"]) for spread in spreads]
    trace.error_y.array = [_rounded(spread["max"] - spread["median"]) for spread in spreads]
    trace.error_y.arrayminus = [_rounded(spread["median"] - spread["min"]) for spread in spreads]
    trace.hovertext = [
        f"<b>{_link(run)}, {binary_text(size)}</b><br>median {_time(spread['median'])} "
        f"({_time(spread['min'])} to {_time(spread['max'])}, {run.config['repeats']} calls)"
        for size, spread in zip(_sizes(run), spreads, strict=True)
    ]


def _sizes(run) -> list[int]:
    return list(run.facts["payload_bytes"]) if run else []


def _draw_fit(trace: go.Scatter, run) -> None:
    fitted = run is not None and run.facts["call_s"] is not None
    sizes = _between(_sizes(run)) if fitted else []
    trace.x = sizes
    if fitted:
        call, rate = float(run.facts["call_s"]), float(run.facts["bandwidth_bytes_per_s"])
        factor = float(run.facts["bytes_over_payload_predicted"][-1])
        trace.y = [_rounded(call + factor * size / rate) for size in sizes]
        trace.hovertext = [f"fit: {_time(call)} + bytes ÷ {_rate(rate)}"] * len(sizes)
    else:
        trace.y, trace.hovertext = [], []


def _draw_rate(trace: go.Scatter, run) -> None:
    """The bytes of the formula at the link's rate: nothing where there is no link."""
    known = run is not None and run.facts["formula_seconds"][-1] is not None
    sizes = _between(_sizes(run)) if known else []
    each = run.facts["formula_seconds"][-1] / run.facts["payload_bytes"][-1] if known else 0
    trace.x, trace.y = sizes, [_rounded(each * size) for size in sizes]
    trace.hovertext = [f"formula at {_link(run)}: {_time(each * size)}" for size in sizes]


def _between(sizes: list[int]) -> list[float]:
    """Forty sizes, evenly on a log axis."""
    low, high = min(sizes), max(sizes)
    return [_rounded(low * (high / low) ** (i / 39)) for i in range(40)]


def _draw_labels(trace: go.Scatter, runs: list, decades: list[int], right: float) -> None:
    ends = [math.log10(run.facts["seconds"][-1]["median"]) for run in runs]
    gap = LINE * (decades[1] - decades[0])
    trace.x = [_rounded(10 ** (right - 0.002))] * len(runs)
    trace.y = [_rounded(10**y) for y in apart(ends, gap=gap, low=decades[0] + gap / 2, high=decades[1] - gap / 2)]
    trace.text = [_label(run) for run in runs]
    trace.textfont.color = [rank_text_colour(number) for number in range(len(runs))]


def _label(run) -> str:
    if run.facts["call_s"] is None:
        return f"<b>{_link(run)}</b>"
    return f"<b>{_link(run)}</b><br>fit {_rate(float(run.facts['bandwidth_bytes_per_s']))}"


def _link(run) -> str:
    gbps = run.environment.link_gbps
    return f"{gbps:g} Gb/s" if gbps else "no link"


def _rate(bytes_per_s: float) -> str:
    gbps = 8e-9 * bytes_per_s
    return f"{gbps:.3g} Gb/s" if math.isfinite(gbps) else "unbounded"


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 0.9995 or unit == "µs":
            return f"{seconds * scale:.3g} {unit}"
    raise AssertionError("unreachable")


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def _verdict(runs: list) -> Verdict:
    """About the slowest link, where bytes matter most."""
    facts = runs[0].facts
    small, large = binary_text(facts["payload_bytes"][0]), binary_text(facts["payload_bytes"][-1])
    first, last = (float(facts["seconds"][i]["median"]) for i in (0, -1))
    text = f"{len(facts['payload_bytes'])} sizes, {len(runs)} line{'s' * (len(runs) > 1)}"
    if not all(all(run.facts["equal"]) for run in runs):
        return Verdict(html="<b>Wrong result</b> on some rank.", text=f"{text}, result: wrong", good=False)
    formula = facts["formula_seconds"][-1]
    says = f" at {_link(runs[0])}, {_time(formula)} by its bytes" if formula else ""
    return Verdict(html=f"<b>{large} takes {_time(last)}</b>{says}; {small} takes {_time(first)}.", text=text)


def show(runs) -> go.Figure:
    """The figure of a run, or of a list of up to six, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, runs), runs)
