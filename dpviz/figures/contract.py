"""The contract as a table: a row a category, what is on record, and a tick, the violation, or a dash where nothing was
recorded to check it by.

A run of any experiment has a contract; its first violation is the verdict.
"""

import plotly.graph_objects as go

from dpviz.contract.check import check_contract
from dpviz.contract.table import Row, rows
from dpviz.figures.style import FONT, INK, LINE, NO, SOFT_INK, YES, layout, tint
from dpviz.figures.verdict import Verdict, titled

HEADS = ("", "on record", "checked")
BROKEN, KEPT, OPEN = tint(NO, white=0.85), "#ffffff", "#f6f6f6"


def make() -> go.Figure:
    """The figure with its table, empty: 580 px high, as wide as its place."""
    figure = layout(go.Figure(), height=580, margin={"l": 4, "r": 4, "t": 8, "b": 4})
    words = {"family": FONT, "size": 13}
    figure.add_trace(
        go.Table(
            name="contract",
            columnwidth=[150, 400, 400],
            header={
                "values": [f"<b>{head}</b>" for head in HEADS],
                "align": "left",
                "fill": {"color": "#ffffff"},
                "line": {"color": LINE},
                "font": words | {"color": SOFT_INK},
                "height": 28,
            },
            cells={
                "values": [[], [], []],
                "align": "left",
                "fill": {"color": [[]]},
                "line": {"color": LINE},
                "font": words | {"color": [[]] * 3},
                "height": 28,
            },
        )
    )
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show the contract of `run`, and say what it breaks first."""
    of_contract = rows(run)
    cells = figure.data[0].cells
    checked = [row.verdict() for row in of_contract]  # no line break by hand: plotly would not break the rest
    names = [row.category for row in of_contract]
    cells.values = [names, [row.recorded for row in of_contract], checked]
    cells.fill.color = [[BROKEN if row.violations else KEPT if row.made else OPEN for row in of_contract]] * 3
    verdicts = [NO if row.violations else YES if row.made else SOFT_INK for row in of_contract]
    cells.font.color = [[INK] * len(of_contract), [INK] * len(of_contract), verdicts]
    return _verdict(run, of_contract)


def _verdict(run, of_contract: list[Row]) -> Verdict:
    found = check_contract(run)
    checks = sum(len(row.made) for row in of_contract)
    if not found:
        html = f"<b>Kept:</b> {checks} checks find nothing, on {run.contract['topology']['world_size']} ranks."
        return Verdict(html=html, text=f"kept: {checks} checks", good=True)
    first, *others = found
    ranks = first.ranks
    who = (
        "every rank"
        if len(ranks) == len(run.results) > 1
        else f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    )
    at = "" if first.step is None else f"step {first.step}, "
    more = f"{len(others)} more check{'s' * (len(others) > 1)} see it" if others else "no other check sees it"
    html = f"<b>Broken at {at}{who}:</b> {first.category}, by the check <i>{first.check}</i>; {more}."
    return Verdict(html=html, text=f"broken: {at}{who}, by {first.check}", good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
