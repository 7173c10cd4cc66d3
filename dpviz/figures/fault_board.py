"""The fault board: ranks x steps, a letter and a colour for each fingerprint of the parameters; below it, which check
saw a difference in which step.

A run's records hold, for each rank and update, a Step whose values["parameters"] is a fingerprint. The facts hold
`differences`, `first_divergent_step`, `divergent_ranks` and `detected_by`.
"""

import collections

import plotly.graph_objects as go

from dpviz.figures.style import INK, NO, SMALL, axis, caption, layout, soft
from dpviz.figures.verdict import Verdict, titled

CHECKS = ("step", "lr", "scaler", "tokens", "norm", "gradients", "optimizer", "parameters", "dropout", "timeout")
MEANING = {
    "step": "optimizer updates made",
    "lr": "learning rate, against the schedule",
    "scaler": "loss scale",
    "tokens": "N that divides the loss",
    "norm": "length of the gradient, which should be finite",
    "gradients": "fingerprint after the all-reduce",
    "optimizer": "fingerprint of the moments",
    "parameters": "fingerprint after the update",
    "dropout": "the mask, which should differ",
    "timeout": "a collective that a rank did not come to",
}
GROUPS = ("#dfe7ee", "#E69F00", "#56B4E9", "#CC79A7", "#F0E442", "#8fd3bf")  # A is the majority
NOTHING, QUIET, SEEN = "#ffffff", "#f2f2f2", "#f3b58f"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"
MOST_LETTERS = 24  # steps; with more the cells are too narrow for a letter
BOARD, STRIP = [0.52, 1], [0, 0.4]


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 470 px high, as wide as its place."""
    figure = layout(go.Figure(), height=470, margin={"l": 92, "r": 16, "t": 54})
    for name, axes in (("board", ""), ("checks", "2")):
        figure.add_trace(
            go.Heatmap(
                name=name,
                x=[],
                y=[],
                z=[],
                text=[],
                texttemplate="%{text}",
                hovertext=[],
                hoverinfo="text",
                xaxis=f"x{axes}",
                yaxis=f"y{axes}",
                xgap=3,
                ygap=3 if not axes else 2,
                zmin=-1,
                zmax=len(GROUPS) - 1,
                colorscale=_scale((NOTHING, *GROUPS) if not axes else (NOTHING, QUIET, SEEN, *[SEEN] * 4)),
                showscale=False,
                textfont={"size": 14 if not axes else SMALL, "color": INK},
            )
        )
        line = {"color": NO, "width": 3}
        figure.add_trace(
            go.Scatter(
                name=f"frame{axes}",
                x=[],
                y=[],
                xaxis=f"x{axes}",
                yaxis=f"y{axes}",
                mode="lines",
                line=line,
                hoverinfo="skip",
                cliponaxis=False,
            )
        )
    across = {"range": [-0.5, 7.5], "dtick": 1, "showgrid": False}
    down = {"autorange": False, "showgrid": False, "ticks": ""}
    figure.update_layout(
        xaxis=axis(anchor="y", showticklabels=False, **across),
        yaxis=axis(domain=BOARD, range=[3.5, -0.5], tickvals=[], ticktext=[], **down),
        xaxis2=axis("step (optimizer update)", anchor="y2", **across),
        yaxis2=axis(
            domain=STRIP,
            anchor="x2",
            range=[len(CHECKS) - 0.5, -0.5],
            tickvals=list(range(len(CHECKS))),
            ticktext=list(CHECKS),
            **down,
        ),
    )
    words = "<b>Parameters after each step</b>: in a step, equal letters are equal parameters"
    figure.add_annotation(caption(words, x=0, y=1.012, name="board"))
    words = f"<b>Which check sees a difference</b> {soft('≠: between ranks, or from the schedule')}"
    figure.add_annotation(caption(words, x=0, y=STRIP[1] + 0.012, name="checks"))
    return figure


def _scale(colours: tuple[str, ...]) -> list[list]:
    """A colour scale without transitions: -1, 0, 1, ... each have their own."""
    edges = [n / len(colours) for n in range(len(colours) + 1)]
    return [[edge, colour] for n, colour in enumerate(colours) for edge in edges[n : n + 2]]


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say where and by what the first difference was seen."""
    k = len(run.records)
    prints = [{record.step: record.values["parameters"] for record in records} for records in run.records]
    steps = 1 + max((step for of_rank in prints for step in of_rank), default=run.config["steps"] - 1)
    traces = {trace.name: trace for trace in figure.data}
    columns = [groups([of_rank.get(step) for of_rank in prints]) for step in range(steps)]
    board, checks = traces["board"], traces["checks"]
    board.x, board.y, checks.x, checks.y = (list(range(n)) for n in (steps, k, steps, len(CHECKS)))
    board.z = [[-1 if column[rank] is None else min(column[rank], 5) for column in columns] for rank in range(k)]
    letters = [["–" if column[rank] is None else LETTERS[column[rank]] for column in columns] for rank in range(k)]
    board.text = letters if steps <= MOST_LETTERS else [[""] * steps for _ in range(k)]
    board.hovertext = [[_hover(rank, step, columns[step]) for step in range(steps)] for rank in range(k)]
    seen = [*run.facts["differences"], *[{}] * steps][:steps]
    checks.z = [[int(name in found) for found in seen] for name in CHECKS]
    checks.text = [["≠" if name in found else "" for found in seen] for name in CHECKS]
    checks.hovertext = [[_told(name, step, found) for step, found in enumerate(seen)] for name in CHECKS]
    first, ranks = run.facts["first_divergent_step"], run.facts["divergent_ranks"]
    _frame(traces["frame"], [] if first is None else [(first, rank) for rank in ranks])
    when = next((step for step, found in enumerate(seen) if found), None)  # a timeout comes later
    _frame(traces["frame2"], [(when, CHECKS.index(name)) for name in run.facts["detected_by"]])
    every = max(1, round(steps / 20))
    for name in ("xaxis", "xaxis2"):
        figure.layout[name].update(range=[-0.5, steps - 0.5], dtick=every)
    shown = list(range(0, k, max(1, k // 8)))
    figure.layout.yaxis.update(range=[k - 0.5, -0.5], tickvals=shown, ticktext=[f"rank {rank}" for rank in shown])
    return _verdict(run, columns, when)


def groups(prints: list) -> list[int | None]:
    """The number of each rank's group of equal fingerprints: 0 the largest one (of equals that of the lowest rank)."""
    counts = collections.Counter(one for one in prints if one is not None)
    order = [one for one, _ in counts.most_common()]  # insertion order breaks ties
    return [None if one is None else order.index(one) for one in prints]


def _hover(rank: int, step: int, column: list[int | None]) -> str:
    if column[rank] is None:
        return f"<b>rank {rank}, step {step}</b><br>made no such step"
    alike = [str(other) for other, group in enumerate(column) if group == column[rank]]
    return f"<b>rank {rank}, step {step}</b><br>the same parameters on rank{'s' * (len(alike) > 1)} {', '.join(alike)}"


def _told(name: str, step: int, found: dict) -> str:
    ranks = f"different: rank {', '.join(map(str, found[name]))}" if name in found else "sees nothing"
    return f"<b>{name}</b>: {MEANING[name]}<br>step {step}, {ranks}"


def _frame(trace: go.Scatter, cells: list[tuple[int, int]]) -> None:
    trace.x = [value for x, _ in cells for value in (x - 0.5, x + 0.5, x + 0.5, x - 0.5, x - 0.5, None)]
    trace.y = [value for _, y in cells for value in (y - 0.5, y - 0.5, y + 0.5, y + 0.5, y - 0.5, None)]


def _verdict(run, columns: list, when: int | None) -> Verdict:
    first, ranks, by = (run.facts[name] for name in ("first_divergent_step", "divergent_ranks", "detected_by"))
    if first is None:
        html = f"<b>No check sees a difference</b> in {len(columns)} steps on {len(run.records)} ranks."
        return Verdict(html=html, text=f"difference: none in {len(columns)} steps", good=True)
    who = "all ranks" if len(ranks) == len(run.records) > 1 else "rank " + ", ".join(map(str, ranks))
    names = " and ".join(filter(None, [", ".join(by[:-1]), by[-1]]))
    html = f"<b>Step {first}, {who}:</b> seen by {names}."
    if all(set(column) <= {0} for column in columns):
        html += " Comparing parameters finds nothing: they are equal."
    elif "timeout" in by:
        html += f" It came in step {when}; until then nothing complained."
    elif len(by) < 3:
        html += f" Sampled parameters end {run.facts['parameter_spread'][-1]:.1g} apart."
    return Verdict(html=html, text=f"first: step {first}, {who}, by {by[0]}", good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
