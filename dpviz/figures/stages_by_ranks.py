"""What a rank holds of a model against the number of ranks, for every ZeRO stage: the formula as a line, what was
measured as points.

Bytes a parameter, so that a small model stands for a large one. `show(runs)` takes runs of `zero` of any stages, ranks
and sizes; what one parameter costs (16 bytes, say) must be the same in all.
"""

import math

import plotly.graph_objects as go

from dpviz.figures.kinds import model_text, size_text
from dpviz.figures.style import (
    INK,
    NO,
    REFERENCE,
    SMALL,
    apart,
    axis,
    caption,
    layout,
    soft,
    step_above,
)
from dpviz.figures.verdict import Verdict, titled
from dpviz.figures.zero_runs import as_predicted, each_of, fullest
from dpviz.theory import memory
from dpviz.theory.plan import NAMES

COLOURS = (REFERENCE, "#0072B2", "#D55E00", "#009E73")  # of the stages
SYMBOLS = ("circle", "square", "diamond", "triangle-up")
FEWEST_SHOWN = 64  # ranks at the axis' end, at least
TOPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8)  # of the axis, in bytes: four even parts each
PARAMS, MEMORY_GB = 7e9, 80.0  # the model that the sizes in GB are told for, and the card


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 420 px high."""
    figure = layout(go.Figure(), height=420, margin={"l": 56, "r": 124, "t": 58, "b": 48})
    line = {"color": NO, "width": 2, "dash": "longdash"}
    figure.add_trace(go.Scatter(name="card", x=[], y=[], mode="lines", line=line, hoverinfo="skip"))
    for stage, name in enumerate(NAMES):
        line = {"color": COLOURS[stage], "width": 1.5, "dash": "dash"}
        more = {"x": [], "y": [], "hovertext": [], "hoverinfo": "text"}
        figure.add_trace(go.Scatter(name=f"{name} by formula", mode="lines", line=line, **more))
    for stage, name in enumerate(NAMES):
        edge = {"color": "#ffffff", "width": 1}
        marker = {"symbol": SYMBOLS[stage], "size": 12, "color": COLOURS[stage], "line": edge}
        more = {"x": [], "y": [], "hovertext": [], "hoverinfo": "text"}
        figure.add_trace(go.Scatter(name=name, mode="markers", marker=marker, cliponaxis=False, **more))
    font = {"size": SMALL, "color": [*COLOURS, NO]}
    labels = {"mode": "text", "textposition": "middle right", "textfont": font, "cliponaxis": False}
    figure.add_trace(go.Scatter(name="labels", x=[], y=[], text=[], hoverinfo="skip", **labels))
    figure.update_layout(
        xaxis=axis("ranks k", type="log", range=[0, 2], tickvals=[], ticktext=[]),
        yaxis=axis("bytes a rank holds for each parameter", range=[0, 16], tickvals=[]),
        annotations=[caption("", x=0, y=1.025)],
    )
    figure.layout.xaxis.tickfont.color = INK
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show a run, or a list of runs, and say what each stage saves."""
    runs = list(run) if isinstance(run, list | tuple) else [run]
    kinds = {each_of(one) for one in runs}
    if len(kinds) != 1:
        costs = ", ".join(f"{'+'.join(map(str, each))} bytes" for each in sorted(kinds)) or "nothing"
        raise ValueError(f"the runs must spend the same on a parameter, but these spend {costs}. Show them apart.")
    each = kinds.pop()
    traces = {trace.name: trace for trace in figure.data}
    most = max(FEWEST_SHOWN, 2 ** math.ceil(math.log2(max(map(_ranks, runs)))))
    held_by = {}
    ks = [2**power for power in range(int(math.log2(most)) + 1)]
    for stage, name in enumerate(NAMES):
        levels = [_by_formula(each, k, stage) for k in ks]
        _set(traces[f"{name} by formula"], ks, levels, [f"<b>{name}</b>, k = {k}: the formula" for k in ks])
        of_stage = [one for one in runs if one.config["stage"] == stage]
        held_by[name] = [fullest(one).total / one.facts["parameters"] for one in of_stage]
        told = [f"<b>{name}</b>, k = {_ranks(one)}: measured, {fullest(one).total:,} B in all" for one in of_stage]
        _set(traces[name], [_ranks(one) for one in of_stage], held_by[name], told)
    ends = [*(_by_formula(each, most, stage) for stage in memory.STAGES), MEMORY_GB * memory.GB / PARAMS]
    top = step_above(1.08 * max([each.total, ends[-1], *(level for held in held_by.values() for level in held)]), TOPS)
    _set_line(traces["card"], [1, most], [ends[-1]] * 2)
    labels = traces["labels"]
    labels.x = [most * 1.04] * len(ends)
    labels.y = apart(ends, gap=0.052 * top, low=0.02 * top, high=0.98 * top)
    labels.text = [f"<b>{name}</b> {size_text(PARAMS * end)}" for name, end in zip([*NAMES, "card"], ends, strict=True)]
    shown = ks if len(ks) <= 9 else ks[::2]
    figure.layout.xaxis.update(range=[-0.06, math.log10(most * 1.08)], tickvals=shown, ticktext=list(map(str, shown)))
    ticks = [top * part / 4 for part in range(5)]
    figure.layout.yaxis.update(range=[0, top], tickvals=ticks, ticktext=[f"{tick:.3g}" for tick in ticks])
    what = " + ".join(f"{count} {kind}" for kind, count in each._asdict().items() if count)
    key = f"{what}; right: {model_text(PARAMS)} parameters at k = {most}"
    head = "<b>What a rank holds of a parameter, bytes</b>"
    figure.layout.annotations[0].text = f"{head} {soft('points: measured; dashed: formula')}<br>{soft(key)}"
    return _verdict(runs, each)


def _ranks(run) -> int:
    return len(run.results)


def _by_formula(each: memory.State, k: int, stage: int) -> float:
    """Bytes a parameter, padding left out."""
    return memory.model_state(k, k, stage=stage, each=each).total / k


def _set_line(trace: go.Scatter, x: list, y: list) -> None:
    trace.x, trace.y = x, [float(f"{level:.6g}") for level in y]


def _set(trace: go.Scatter, x: list, y: list, told: list[str]) -> None:
    _set_line(trace, x, y)
    trace.hovertext = [
        f"{words}<br>{level:.4g} bytes a parameter: {size_text(PARAMS * level, digits=4)} at {model_text(PARAMS)}"
        for words, level in zip(told, y, strict=True)
    ]


def _verdict(runs: list, each: memory.State) -> Verdict:
    """What is saved at the largest k that was run; wrong where a rank holds something else than predicted."""
    for run in runs:
        if not as_predicted(run):
            name = f"{NAMES[run.config['stage']]} at k = {_ranks(run)}"
            html = f"<b>Not divided as it should be:</b> {name} holds other bytes than predicted."
            return Verdict(html=html, text=f"{name}: as predicted: no", good=False)
    k = max(map(_ranks, runs))
    saved = {
        run.config["stage"]: 100 - 100 * fullest(run).total / run.facts["parameters"] / each.total
        for run in runs
        if _ranks(run) == k
    }
    told = [f"{NAMES[stage]} {saved[stage]:.3g} %" for stage in sorted(saved, reverse=True) if stage]
    if not told:
        html = f"<b>DP saves nothing:</b> each of {k} ranks holds all {each.total} bytes of every parameter."
        return Verdict(html=html, text=f"k={k}: DP saves nothing; as predicted: yes", good=True)
    # what stays however many ranks there are
    last = max(stage for stage in saved)
    whole = sum(count for count, first in zip(each, (3, 2, 1, 1), strict=True) if last < first)
    limit = f"however many ranks, {NAMES[last]} keeps {whole} bytes" if whole else "only ZeRO-3 has no floor"
    html = f"<b>At k = {k} saved: {', '.join(told)}</b>; {limit}."
    return Verdict(html=html, text=f"k={k} saved: {', '.join(told)}; as predicted: yes", good=True)


def show(runs) -> go.Figure:
    """The figure of a run or of several, its verdict as the title."""
    figure = make()
    runs = sorted(runs, key=_ranks) if isinstance(runs, list | tuple) else runs
    return titled(figure, draw(figure, runs), runs)
