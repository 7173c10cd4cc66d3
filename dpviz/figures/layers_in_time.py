"""Layers x time: when each layer is fetched, whole and used on a rank; below, what the rank computes, gathers and
scatters, and how many bytes of whole layers it holds.

A run of `fsdp` holds, for each rank, results[rank]["timeline"] (Events in seconds since the last rank began the step),
["whole"] (from when to when each group of layers was whole), ["group_names"] and ["group_sizes"] (in parameters).
`show(left, right)` puts two settings side by side on one scale.
"""

import plotly.graph_objects as go

from dpviz.figures.fsdp_runs import settings, spans, trained_as_ddp, whole_bytes
from dpviz.figures.kinds import COLOURS, bytes_axis, size_text
from dpviz.figures.style import (
    INK,
    REDUCED,
    REDUCED_EDGE,
    SMALL,
    axis,
    caption,
    layout,
    power,
    soft,
    step_above,
    tint,
)
from dpviz.figures.verdict import Verdict, titled

ROWS, LANES, AREA = [0.47, 1.0], [0.25, 0.42], [0.0, 0.19]  # of the height
GAP = 0.03  # between two columns, of the width
NICE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
TOPS = (1, 1.2, 1.6, 2, 2.4, 3, 3.2, 4, 5, 6, 8)
MOST_NAMED = 12  # layers
HIDES = 0.05  # of the gathering: less hidden than this is nothing
FORWARD, BACKWARD, COMING = "#0072B2", "#E69F00", "#CC79A7"
WHOLE = tint(COLOURS["gathered"], white=0.35)
KINDS = {  # of bars: colour, edge, hatching, height in rows
    "coming": (tint(COMING, white=0.75), COMING, "/", 0.86),
    "whole": (WHOLE, COMING, "", 0.86),
    "forward": (FORWARD, FORWARD, "", 0.42),
    "backward": (BACKWARD, BACKWARD, "", 0.42),
    "scatter": (REDUCED, REDUCED_EDGE, "\\", 0.42),
}
IN_LANES = {"forward": 0, "backward": 0, "coming": 1, "scatter": 2}
NAMES = {"coming": "is fetched", "whole": "is whole", "scatter": "gradients reduced"}


def make(columns: int = 1) -> go.Figure:
    """The figure with every trace in it and nothing drawn: 530 px high, for one run or two."""
    figure = layout(
        go.Figure(),
        height=530,
        margin={"l": 92, "r": 14, "t": 98, "b": 46} | ({"r": 74} if columns > 1 else {}),
        barmode="overlay",
    )
    wide = (1 - GAP * (columns - 1)) / columns
    axes, notes = {}, [caption("", x=0, y=1.112, name="key")]
    for column in range(columns):
        left = column * (wide + GAP)
        domain = [round(left, 4), round(left + wide, 4)]
        for part, high in enumerate((ROWS, LANES, AREA)):
            number = _number(column, part)
            title = f"{'ms' if columns > 1 else 'milliseconds'} since the last rank began" if part == 2 else ""
            axes[f"xaxis{number}"] = axis(title, domain=domain, anchor=f"y{number}", range=[0, 1], zeroline=False)
            axes[f"xaxis{number}"] |= {} if part == 2 else {"showticklabels": False, "ticks": ""}
            axes[f"yaxis{number}"] = axis(domain=high, anchor=f"x{number}", range=[0, 1], tickvals=[], showgrid=False)
            axes[f"yaxis{number}"] |= {"tickfont": {"size": SMALL, "color": INK}, "side": "right" if column else "left"}
        for kind in KINDS:
            for part in (0, 1) if kind in IN_LANES else (0,):
                figure.add_trace(_bars(f"{kind} {_number(column, part)}", kind, _number(column, part)))
        for kind in ("whole", "coming"):
            figure.add_trace(_area(f"{kind} {_number(column, 2)}", kind, _number(column, 2)))
        notes.append(caption("", x=left, y=1.01, name=f"title {column}"))
    figure.update_layout(annotations=notes, **axes)
    return figure


def _number(column: int, part: int) -> str:
    """Of the axes of a column's rows, lanes and area."""
    return str(3 * column + part + 1) if column or part else ""


def _bars(name: str, kind: str, number: str) -> go.Bar:
    colour, edge, hatch, _ = KINDS[kind]
    pattern = {"shape": hatch, "size": 6, "solidity": 0.2, "fgcolor": edge, "fillmode": "overlay"}
    return go.Bar(
        name=name,
        orientation="h",
        x=[],
        y=[],
        base=[],
        width=[],
        marker={"color": colour, "line": {"color": edge, "width": 1}, "pattern": pattern},
        hovertext=[],
        hoverinfo="text",
        xaxis=f"x{number}",
        yaxis=f"y{number}",
    )


def _area(name: str, kind: str, number: str) -> go.Scatter:
    colour, edge, hatch, _ = KINDS[kind]
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        mode="lines",
        stackgroup=number,
        line={"width": 0.75, "color": edge, "shape": "hv"},
        fillcolor=colour,
        fillpattern={"shape": hatch, "size": 6, "solidity": 0.2, "fgcolor": edge, "bgcolor": colour},
        hovertext=[],
        hoverinfo="text",
        xaxis=f"x{number}",
        yaxis=f"y{number}",
    )


def _key(kind: str) -> str:
    colour, edge, hatch, _ = KINDS[kind]
    sign = "▨" if hatch else "■"
    return f"<span style='color:{edge if hatch else colour}'>{sign}</span> {NAMES.get(kind, kind)}"


def draw(figure: go.Figure, run, *, rank: int = 0) -> Verdict:
    """Change `figure` (of `make`, with a column a run) to show a run, or a list of two, as `rank` saw it."""
    runs = list(run) if isinstance(run, list | tuple) else [run]
    traces = {trace.name: trace for trace in figure.data}
    notes = {note.name: note for note in figure.layout.annotations}
    results = [one.results[rank] for one in runs]
    found = [spans(result) for result in results]
    begin, end = (of(at for s in found for one in s for at in one[2:]) for of in (min, max))
    between = [-step_above(-begin, NICE) if begin < -0.5 else 0, step_above(1.01 * end, NICE)]
    areas = [whole_bytes(result) for result in results]
    top = step_above(1.05 * max(total for area in areas for total in map(sum, area[1])), TOPS)
    for column, (one, result, name) in enumerate(zip(runs, results, settings(runs), strict=True)):
        _draw_bars(traces, column, found[column], result["group_names"])
        _draw_area(traces, column, areas[column])
        _draw_axes(figure, column, result["group_names"], between, top)
        seconds = f"step {1e3 * one.facts['seconds']['median']:.0f} ms"
        spread = f"({1e3 * one.facts['seconds']['min']:.0f} to {1e3 * one.facts['seconds']['max']:.0f})"
        notes[f"title {column}"].text = f"<b>{name}</b><br>{soft(f'{seconds} {spread}')}"
    notes["key"].text = soft("  ".join([f"rank {rank}:", *map(_key, KINDS)]))
    return _verdict(runs)


def _draw_bars(traces: dict, column: int, found: list, names: list[str]) -> None:
    for kind, (*_, high) in KINDS.items():
        rows = [one for one in found if one[0] == kind]
        told = [
            f"<b>{names[unit]}</b> {NAMES.get(kind, kind)}: {end - start:.2f} ms<br>from {start:.1f} to {end:.1f} ms"
            for _, unit, start, end in rows
        ]
        _set(traces[f"{kind} {_number(column, 0)}"], rows, [unit for _, unit, *_ in rows], high, told)
        if kind in IN_LANES:
            _set(traces[f"{kind} {_number(column, 1)}"], rows, [IN_LANES[kind]] * len(rows), 0.7, told)


def _set(trace: go.Bar, rows: list, at: list, high: float, told: list[str]) -> None:
    trace.base = [round(start, 3) for _, _, start, _ in rows]
    trace.x = [round(end - start, 3) for _, _, start, end in rows]
    trace.y, trace.width, trace.hovertext = at, [high] * len(rows), told


def _draw_area(traces: dict, column: int, area: tuple) -> None:
    moments, held = area
    for part, kind in enumerate(("whole", "coming")):
        trace = traces[f"{kind} {_number(column, 2)}"]
        trace.x, trace.y = [round(at, 3) for at in moments], [counts[part] for counts in held]
        trace.hovertext = [
            f"after {at:.1f} ms: {size_text(whole)} whole, {size_text(coming)} on their way"
            for at, (whole, coming) in zip(moments, held, strict=True)
        ]


def _draw_axes(figure: go.Figure, column: int, names: list[str], between: list, top: float) -> None:
    rows, lanes, area = (_number(column, part) for part in range(3))
    for number in (rows, lanes, area):
        figure.layout[f"xaxis{number}"].range = between
    ticks, unit = bytes_axis(top, parts=2)
    each = -(-len(names) // MOST_NAMED)
    shown = list(range(0, len(names), each))
    words = {
        rows: (shown, [names[number] for number in shown], [len(names) - 0.45, -0.55]),
        lanes: ([0, 1, 2], ["computes", "gathers", "scatters"], [2.55, -0.55]),
        area: (ticks["tickvals"], [f"{tick} {unit}" for tick in ticks["ticktext"]], ticks["range"]),
    }
    for number, (places, texts, span) in words.items():
        texts = texts if column == 0 or number == rows else [""] * len(texts)
        figure.layout[f"yaxis{number}"].update(range=span, tickvals=places, ticktext=texts)


def _most(run) -> int:
    """Bytes of layers that a rank had whole or on their way at once, at most."""
    return max(sum(held) for result in run.results for held in whole_bytes(result)[1])


def _verdict(runs: list) -> Verdict:
    for run in runs:
        if not trained_as_ddp(run):
            off = power(float(run.facts["max_difference_from_ddp"]))
            html = f"<b>Not the same training:</b> losses differ by {off} from DDP's."
            return Verdict(html=html, text="trains as DDP: no", good=False)
    shares = [_most(run) / (run.facts["parameters"] * run.results[0]["wire_item_bytes"]) for run in runs]
    text = f"at most {' and '.join(f'{100 * share:.0f} %' for share in shares)} of the model whole; trains as DDP: yes"
    hidden = [float(run.facts["hidden_fraction"]) for run in runs]
    if len(runs) == 1:
        gathering = 1e3 * runs[0].facts["gather_s"]
        wait = min(1e3 * runs[0].facts["waiting_s"], gathering)
        part = f"{100 * hidden[0]:.0f} % of the gathering is hidden" if hidden[0] > HIDES else "No gathering is hidden"
        html = f"<b>{part}:</b> {wait:.0f} of {gathering:.0f} ms are waited; whole at most {100 * shares[0]:.0f} %."
        return Verdict(html=html, text=text)
    left, right = (f"{100 * (share if share > HIDES else 0):.0f} %" for share in hidden)
    took = " and ".join(f"{1e3 * run.facts['seconds']['median']:.0f}" for run in runs)
    html = f"<b>Hidden: {left} and {right} of the gathering</b>; steps of {took} ms."
    return Verdict(html=html, text=text)


def show(left, right=None, *, rank: int = 0) -> go.Figure:
    """The figure of one run, or of two side by side, as `rank` saw them; the verdict as the title."""
    runs = [left] if right is None else [left, right]
    figure = make(len(runs))
    return titled(figure, draw(figure, runs, rank=rank), runs)
