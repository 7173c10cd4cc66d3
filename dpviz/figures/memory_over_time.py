"""All tensors of a rank over one step, kind by kind, and their peak: what no stage divides comes on top of the rest.

A run of `zero` or `fsdp` holds results[rank]["memory"]: {"peak": bytes, "times": [seconds], "held": {kind: [bytes]}}.
`show(runs)` puts several runs side by side on one scale. Times are those of a watched step, which takes longer.
"""

import plotly.graph_objects as go

from dpviz.figures.fsdp_runs import settings
from dpviz.figures.kinds import COLOURS, HATCHES, NAMES, bytes_axis, size_text
from dpviz.figures.style import INK, SMALL, axis, caption, layout, soft, step_above
from dpviz.figures.verdict import Verdict, titled
from dpviz.theory.plan import NAMES as STAGES

MOST = 4  # runs side by side
ON_TOP = ("gathered", "activations", "other")  # of the model state
LITTLE = 0.02  # of the peak: less is not told
GAP = 0.035  # between them, of the width
TOPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8)  # where the axis may end: four even parts
NICE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)


def make(columns: int = 1) -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high."""
    figure = layout(go.Figure(), height=430, margin={"l": 62, "r": 14, "t": 98, "b": 48})
    wide = (1 - GAP * (columns - 1)) / columns
    axes, notes = {}, [caption("", x=0, y=1.15, name="key")]
    for column in range(columns):
        number = str(column + 1) if column else ""
        where = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        for kind, colour in COLOURS.items():
            figure.add_trace(
                go.Scatter(
                    name=f"{kind}{number}",
                    x=[],
                    y=[],
                    mode="lines",
                    stackgroup=f"held{number}",
                    line={"width": 0.75, "color": colour, "shape": "hv"},
                    fillcolor=colour,
                    fillpattern={"shape": HATCHES[kind], "size": 7, "solidity": 0.15, "fgcolor": "#ffffff"}
                    | {"bgcolor": colour, "fillmode": "overlay"},
                    hovertext=[],
                    hoverinfo="text",
                    **where,
                )
            )
        peak = {"symbol": "triangle-down", "size": 10, "color": INK}
        text = {"mode": "markers+text", "text": [], "textposition": [], "textfont": {"size": SMALL, "color": INK}}
        text["hoverinfo"] = "skip"
        figure.add_trace(go.Scatter(name=f"peak{number}", x=[], y=[], marker=peak, cliponaxis=False, **text, **where))
        left = column * (wide + GAP)
        domain = [round(left, 4), round(left + wide, 4)]
        axes[f"xaxis{number}"] = axis("ms of a watched step", domain=domain, anchor=f"y{number}", range=[0, 1])
        axes[f"yaxis{number}"] = axis(domain=[0, 1], anchor=f"x{number}", range=[0, 1], tickvals=[])
        notes.append(caption("", x=left, y=1.01, name=f"title{number}"))
    figure.update_layout(annotations=notes, **axes)
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`, with a column a run) to show a run or a list of runs; say what makes the peak."""
    runs = list(run) if isinstance(run, list | tuple) else [run]
    watched = [_watched(one) for one in runs]
    ticks, unit = bytes_axis(step_above(1.13 * max(memory["peak"] for memory in watched), TOPS))
    traces = {trace.name: trace for trace in figure.data}
    notes = {note.name: note for note in figure.layout.annotations}
    for column, (one, memory, name) in enumerate(zip(runs, watched, _names(runs), strict=True)):
        number = str(column + 1) if column else ""
        end = step_above(1e3 * memory["times"][-1], NICE)
        _draw_column(traces, number, memory, end)
        figure.layout[f"xaxis{number}"].range = [0, end]
        shown = ticks if column == 0 else ticks | {"ticktext": [""] * len(ticks["ticktext"])}
        figure.layout[f"yaxis{number}"].update(**shown)
        state = soft(f"model state {size_text(_state(one))}")
        notes[f"title{number}"].text = f"<b>{name}</b><br>{state}"
    figure.layout.yaxis.title.text = f"{unit} of a rank's tensors"
    kinds = [kind for kind in COLOURS if any(max(memory["held"].get(kind, [0])) for memory in watched)]
    key = [f"<span style='color:{COLOURS[kind]}'>■</span> {NAMES.get(kind, kind)}" for kind in kinds]
    notes["key"].text = soft("  ".join(["bottom to top:", *key]))
    return _verdict(runs, watched)


def _watched(run) -> dict:
    """What was watched on the rank with the highest peak; kinds that have no colour count as temporary."""
    found = max((result["memory"] for result in run.results), key=lambda memory: memory["peak"])
    held = {kind: list(counts) for kind, counts in found["held"].items() if kind in COLOURS}
    rest = [counts for kind, counts in found["held"].items() if kind not in COLOURS]
    if rest:
        held["other"] = [sum(counts) for counts in zip(*rest, *[held["other"]] * ("other" in held), strict=True)]
    return {"peak": found["peak"], "times": found["times"], "held": held}


def _state(run) -> int:
    """Bytes of model state on the fullest rank, gradients included."""
    return max(sum(held.values()) for held in run.facts["bytes_per_rank"])


def _names(runs: list) -> list[str]:
    """The stages of runs of `zero`; of runs of `fsdp` what tells them apart."""
    if any("stage" not in run.config for run in runs):
        return settings(runs)
    torchs = [" (torch)" if run.config["implementation"] == "torch" else "" for run in runs]
    return [f"{STAGES[run.config['stage']]}{torch}" for run, torch in zip(runs, torchs, strict=True)]


def _draw_column(traces: dict, number: str, memory: dict, end: float) -> None:
    times = [round(1e3 * seconds, 3) for seconds in memory["times"]]
    totals = [sum(counts) for counts in zip(*memory["held"].values(), strict=True)]
    for kind in COLOURS:
        counts = memory["held"].get(kind, [])
        trace = traces[f"{kind}{number}"]
        trace.x, trace.y = times if counts else [], list(counts)
        trace.hovertext = [
            f"<b>{NAMES.get(kind, kind)}</b> {count:,} B<br>of {total:,} B after {at:.1f} ms"
            for at, count, total in zip(times, counts, totals, strict=False)
        ]
    at = totals.index(max(totals))
    peak = traces[f"peak{number}"]
    peak.x, peak.y, peak.text = [times[at]], [totals[at]], [f"<b>peak {size_text(totals[at])}</b>"]
    peak.textposition = [
        "top right" if times[at] < 0.3 * end else "top left" if times[at] > 0.7 * end else "top center"
    ]


def _at_peak(memory: dict) -> dict[str, int]:
    """Bytes of each kind at the moment of the peak."""
    moments = [dict(zip(memory["held"], counts, strict=True)) for counts in zip(*memory["held"].values(), strict=True)]
    return max(moments, key=lambda held: sum(held.values()))


def _verdict(runs: list, watched: list[dict]) -> Verdict:
    over = [memory["peak"] / _state(one) for one, memory in zip(runs, watched, strict=True)]
    names = _names(runs)
    text = ", ".join(f"{name} peak {times:.1f} × model state" for name, times in zip(names, over, strict=True))
    if len(runs) == 1:
        held = _at_peak(watched[0])
        beside = sorted(((held.get(kind, 0), kind) for kind in ON_TOP), reverse=True)
        little = LITTLE * watched[0]["peak"]
        told = [f"{size_text(count)} {NAMES.get(kind, kind)}" for count, kind in beside[:2] if count > little]
        html = f"<b>Peak {over[0]:.2f} × the model state</b>" + (f": on top {' and '.join(told)}." if told else ".")
        return Verdict(html=html, text=text)
    peaks = {name: memory["peak"] for name, memory in zip(names, watched, strict=True)}
    low = min(peaks, key=peaks.get)
    kept = {max(memory["held"].get("activations", [0])) for memory in watched}
    same = f"activations {size_text(kept.pop())} in each" if len(kept) == 1 else "activations differ"
    share = f"{100 * peaks[low] / max(peaks.values()):.0f} %"
    html = f"<b>{low}: peak {size_text(peaks[low])}, {share} of the highest</b>; {same}."
    return Verdict(html=html, text=text)


def show(runs) -> go.Figure:
    """The figure of a run or of up to four, its verdict as the title. Raises ValueError for more."""
    runs = list(runs) if isinstance(runs, list | tuple) else [runs]
    if not 1 <= len(runs) <= MOST:
        raise ValueError(f"{len(runs)} runs were given, but 1 to {MOST} fit side by side.")
    figure = make(len(runs))
    return titled(figure, draw(figure, runs), runs)
