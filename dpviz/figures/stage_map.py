"""Which ZeRO stage at which number of ranks: a cell a pair, by the planner's closed forms, and recorded runs over it.

`draw(figure, plans)` takes {ranks k: theory.plan.Plan}, as dpviz.planner.Config.plans returns it; `over(runs)` is the
same figure with runs of `zero`, such as dpviz.Run.load reads, marked in the cells of their stage and k:

    dp.calculator(Config.plans, Config(), figure=stage_map.over(runs), controls={...}, presets={"params": PRESETS})
"""

from __future__ import annotations

import plotly.graph_objects as go

from dpviz.figures.kinds import size_text
from dpviz.figures.style import INK, RANK_COLOURS, SMALL, YES, axis, caption, layout, soft
from dpviz.figures.verdict import Verdict, headed
from dpviz.theory.plan import GB, NAMES

TOO_MUCH = "#e4e4e4"
SHADES = ("#ffffff", "#fdf6c8", "#f8e98a", "#efd23f")  # of cells in which sending is at most so much of the step:
SHARES = (0.1, 0.25, 0.5, 1.0)
RECORDED = RANK_COLOURS[0]
MOST_KS = 8  # columns that there is room for


def over(runs) -> Recorded:
    """The figure with these runs marked in it."""
    return Recorded(runs)


class Recorded:
    """See `over`. Raises ValueError for a run of another experiment."""

    def __init__(self, runs) -> None:
        self.runs = list(runs)
        others = [run.experiment for run in self.runs if run.experiment != "zero"]
        if others:
            raise ValueError(f"a run of {others[0]} has no ZeRO stage. Give runs of zero.")

    def make(self) -> go.Figure:
        return make()

    def draw(self, figure: go.Figure, plans) -> Verdict:
        return draw(figure, plans, runs=self.runs)

    def notes(self, plans) -> list[str]:
        return notes(plans, runs=self.runs)

    def show(self, plans) -> go.Figure:
        return show(plans, runs=self.runs)


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 440 px high."""
    figure = layout(go.Figure(), height=440, margin={"l": 62, "r": 10, "t": 62, "b": 44})
    colours = [TOO_MUCH, *SHADES]
    scale = [[(n + side) / len(colours), colour] for n, colour in enumerate(colours) for side in (0, 1)]
    figure.add_trace(
        go.Heatmap(
            name="cells",
            z=[[0] * MOST_KS for _ in NAMES],
            text=[[""] * MOST_KS for _ in NAMES],
            hovertext=[[""] * MOST_KS for _ in NAMES],
            hoverinfo="text",
            texttemplate="%{text}",
            textfont={"size": SMALL, "color": INK},
            colorscale=scale,
            zmin=-0.5,
            zmax=len(colours) - 0.5,
            showscale=False,
            xgap=3,
            ygap=3,
        )
    )
    figure.add_trace(
        go.Scatter(
            name="recorded",
            x=[],
            y=[],
            mode="markers+text",
            text=[],
            textposition="middle right",
            textfont={"size": SMALL, "color": RECORDED},
            marker={"symbol": "diamond", "size": 9, "color": RECORDED},
            hovertext=[],
            hoverinfo="text",
        )
    )
    frame = {"type": "rect", "x0": 0, "x1": 0, "y0": 0, "y1": 0, "line": {"color": YES, "width": 3}, "visible": False}
    figure.update_layout(
        xaxis=axis("ranks k", range=[-0.5, MOST_KS - 0.5], tickvals=[], showgrid=False),
        yaxis=axis("", range=[3.5, -0.5], tickvals=list(range(4)), ticktext=list(NAMES), showgrid=False),
        shapes=[frame | {"name": f"choice {column}"} for column in range(MOST_KS)],
        annotations=[caption("", x=0, y=1.02, name="key")],
    )
    for side in (figure.layout.xaxis, figure.layout.yaxis):
        side.tickfont.update(size=13, color=INK)
    return figure


def draw(figure: go.Figure, plans, *, runs=()) -> Verdict:
    """Change `figure` (of `make`) to show {k: Plan}, and say which stage to take at which k. Raises ValueError for more
    than eight k.
    """
    if not 0 < len(plans) <= MOST_KS:
        raise ValueError(f"{len(plans)} numbers of ranks were given, but there is room for 1 to {MOST_KS}.")
    ks, card = list(plans), _card(plans)
    cells, marks = (next(trace for trace in figure.data if trace.name == name) for name in ("cells", "recorded"))
    rows = [[plans[k].stages[stage] for k in ks] for stage in range(len(NAMES))]
    cells.z = [[_shade(stage) for stage in row] for row in rows]
    cells.text = [[_in_cell(stage) for stage in row] for row in rows]
    cells.hovertext = [[_told(stage, k, card) for stage, k in zip(row, ks, strict=True)] for row in rows]
    for column, shape in enumerate(figure.layout.shapes):
        choice = plans[ks[column]].choice if column < len(ks) else None
        at = choice or 0
        sides = {"x0": column - 0.48, "x1": column + 0.48, "y0": at - 0.47, "y1": at + 0.47}
        shape.update(visible=choice is not None, **sides)
    figure.layout.xaxis.update(
        range=[-0.5, len(ks) - 0.5], tickvals=list(range(len(ks))), ticktext=[f"{k:,}" for k in ks]
    )
    marked = [run for run in runs if _k(run) in plans]
    marks.x = [ks.index(_k(run)) - 0.32 for run in marked]
    marks.y = [run.config["stage"] + 0.34 for run in marked]
    marks.text = [f" {_ratio(run):.2f} ×" for run in marked]
    marks.hovertext = [_of_run(run) for run in marked]
    recorded = f"<span style='color:{RECORDED}'>◆ recorded: step over DP's</span>" if marked else ""
    frames = f"<span style='color:{YES}'>▢ take this</span>"
    grey = soft(f"grey ✗: over the card's {size_text(card * GB)}; ⇄, yellow: the part that is sending")
    head = "<b>Held; a step if nothing hides</b>"
    figure.layout.annotations[0].text = f"{head}   {frames}   {recorded}<br>{grey}"
    return _verdict(plans, card)


def _shade(stage) -> int:
    if not stage.fits:
        return 0
    return 1 + next(i for i, share in enumerate(SHARES) if _sending(stage) <= share)


def _sending(stage) -> float:
    """The part of a step that is sending, if nothing hides."""
    return stage.communication_s / stage.step_exposed_s


def _in_cell(stage) -> str:
    held = size_text(stage.memory_gb * GB)
    if not stage.fits:
        return f"✗ {held}<br> "
    sending = f"⇄ {100 * _sending(stage):.0f} %"
    return f"<b>{held}</b><br>{_seconds(stage.step_exposed_s)}<br>{soft(sending)}<br> "  # the last line: a recorded run


def _told(stage, k: int, card: float) -> str:
    return (
        f"<b>{stage.name}, k = {k:,}</b>: {stage.memory_gb:,.4g} of {card:g} GB<br>"
        f"sends {stage.traffic_gb:,.4g} GB a step<br>"
        f"a step: {_seconds(stage.step_s)} if all of it is hidden, {_seconds(stage.step_exposed_s)} if nothing is<br>"
        f"sending is {100 * _sending(stage):.2g} % of that"
    )


def _of_run(run) -> str:
    step, where = run.facts["seconds"], run.environment
    return (
        f"<b>recorded: {NAMES[run.config['stage']]}, k = {_k(run)}</b>, {run.facts['parameters']:,} parameters<br>"
        f"a step: {1e3 * step['median']:.0f} ms ({1e3 * step['min']:.0f} to {1e3 * step['max']:.0f})<br>"
        f"{where.line()}<br>started by {where.launcher}"
    )


def _k(run) -> int:
    return run.environment.world_size


def _ratio(run) -> float:
    return run.facts["times_stage_0"]


def _seconds(seconds: float) -> str:
    """Three digits in a unit that needs no powers of ten: 0.49 is '490 ms', 4400 '4,400 s'."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{float(f'{seconds:.3g}'):,.9g} s"


def _card(plans) -> float:
    first = next(iter(plans.values())).stages[0]
    return first.memory_gb + first.free_gb


def notes(plans, *, runs=()) -> list[str]:
    """Return what else there is to know, as sentences."""
    most, last = list(plans.items())[-1]
    told = [f"k = {most:,}: a global batch of {last.global_batch_tokens:,} tokens."]
    told += list(dict.fromkeys(f"Recorded: {run.environment.line()}." for run in runs))
    left = sorted({_k(run) for run in runs} - set(plans))
    return told + [f"Recorded at k = {k}, which has no column." for k in left]


def _verdict(plans, card: float) -> Verdict:
    """The choice for each stretch of ranks."""
    stretches: list[tuple[str, list[int]]] = []
    for k, plan in plans.items():
        name = "nothing fits" if plan.choice is None else NAMES[plan.choice]
        if stretches and stretches[-1][0] == name:
            stretches[-1][1].append(k)
        else:
            stretches.append((name, [k]))
    told = [f"{name} at k = {_span(ks)}" for name, ks in stretches]
    text = "; ".join(told)
    if all(name == "nothing fits" for name, _ in stretches):
        html = f"<b>Nothing fits</b> into {size_text(card * GB)}, whatever the number of ranks here."
        return Verdict(html=html, text="nothing fits", good=False)
    stretches.sort(key=lambda one: one[0] == "nothing fits")
    first, *others = [f"{name}</b> at k = {_span(ks)}" for name, ks in stretches]
    html = "; ".join([f"<b>Take {first}", *(f"<b>{other}" for other in others)])
    return Verdict(html=f"{html}.", text=text, good=True)


def _span(ks: list[int]) -> str:
    return f"{ks[0]:,}" if len(ks) == 1 else f"{ks[0]:,} to {ks[-1]:,}"


def show(plans, *, runs=()) -> go.Figure:
    """The figure of {k: Plan}, with runs over it, its verdict as the title."""
    figure = make()
    lines = "; ".join(dict.fromkeys(run.environment.line() for run in runs))
    conditions = f"modelled; ◆ measured: {lines}" if lines else "modelled, not measured"
    return headed(figure, draw(figure, plans, runs=runs), conditions)
