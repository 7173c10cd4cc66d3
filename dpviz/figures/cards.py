"""What decides a sentence: bars that ranks measured, and beside them hollow ones, as high as they would be if it held.

The values come from a lesson's own runs, since each sentence looks at another fact: `draw` takes an Evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Real

import plotly.graph_objects as go

from dpviz.figures.style import INK, NO, RANK_COLOURS, REFERENCE, SMALL, axis, caption, layout, tint
from dpviz.figures.verdict import Verdict, headed, titled
from dpviz.wrong_value import WrongValue

MEASURED, OTHER = "measured", "other"
MOST_CASES = 8
WIDTH, GAP = 0.34, 0.03  # of a bar, in cases
VEIL = "rgba(255, 255, 255, 0.85)"
FULL, HOLLOW = RANK_COLOURS[0], tint(NO, white=0.85)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A number for each case, and what it would have to be.

    measured    {case: value}; a case's name may have a second line, after a line feed
    other       {case: value} for some of the cases or all: what the sentence, or another account, makes of them
    unit        of the values, for the axis: "bytes a parameter"
    called      what the other numbers are: "if the sentence were true"
    limit       a value that a line marks, and limit_called what it is: 80, "a card of 80 GB"
    runs        where the values come from; none where they are computed

    Raises ValueError for no dict, no case or more than 8, a value that is no number, or an `other` of an unknown case.
    """

    measured: dict[str, float]
    other: dict[str, float] = field(default_factory=dict)
    unit: str
    called: str = "if the sentence were true"
    limit: float | None = None
    limit_called: str = ""
    runs: list = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("measured", "other"):
            if not isinstance(given := getattr(self, name), dict):
                raise WrongValue(f"{name} is {given!r}, but it must be a dict with a number for each case.")
        if not 1 <= len(self.measured) <= MOST_CASES:
            raise WrongValue(
                f"{len(self.measured)} cases were given, but a card shows 1 to {MOST_CASES}. Leave some out."
            )
        if unknown := [case for case in self.other if case not in self.measured]:
            raise WrongValue(f"{unknown[0]!r} was not measured. Give `other` only for the cases of `measured`.")
        for case, value in [*self.measured.items(), *self.other.items()]:
            if not (isinstance(value, Real) and math.isfinite(value) and value >= 0):
                raise WrongValue(f"{case!r} is {value!r}, but a bar needs a number, 0 or more.")

    @classmethod
    def of(cls, runs: dict, value: Callable, **more) -> Evidence:
        """Return the Evidence whose cases are `runs` by name, each measured as value(run)."""
        return cls(measured={case: value(run) for case, run in runs.items()}, runs=list(runs.values()), **more)

    @property
    def says(self) -> str:
        """The measured numbers in a few words: '16, 16, 16 bytes a parameter'."""
        return f"{', '.join(map(short, self.measured.values()))} {self.unit}"


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 250 px high."""
    figure = layout(go.Figure(), height=250, margin={"l": 62, "r": 16, "t": 34, "b": 46})
    stripes = {"shape": "/", "fgcolor": tint(NO, white=0.55), "bgcolor": "#ffffff", "size": 6}
    full = {"color": FULL, "line": {"width": 0}}
    hollow = {"color": HOLLOW, "line": {"width": 1.5, "color": NO}, "pattern": stripes}
    for name, marker, offset in ((MEASURED, full, -WIDTH - GAP / 2), (OTHER, hollow, GAP / 2)):
        figure.add_trace(
            go.Bar(name=name, x=[], y=[], width=WIDTH, offset=offset, marker=marker, hovertext=[], hoverinfo="text")
        )
    line = {"color": REFERENCE, "width": 1.5, "dash": "dash"}
    figure.add_trace(go.Scatter(name="limit", x=[], y=[], mode="lines", line=line, hoverinfo="skip"))
    figure.update_layout(
        xaxis=axis(range=[-0.5, 2.5], showgrid=False, tickfont={"size": 13, "color": INK}),
        yaxis=axis("", range=[0, 1], nticks=5),
    )
    return figure


def draw(figure: go.Figure, run: Evidence) -> Verdict:
    """Change `figure` (of `make`) to show an Evidence, and say its numbers; what follows is for the reader to say."""
    evidence, cases = run, list(run.measured)
    traces = {trace.name: trace for trace in figure.data}
    middle = -WIDTH / 2 if not evidence.other else -WIDTH - GAP / 2  # without a partner in the middle of its case
    traces[MEASURED].offset = middle
    numbers = []
    for name, values, what, offset in (
        (MEASURED, evidence.measured, _how(evidence), middle),
        (OTHER, evidence.other, evidence.called, GAP / 2),
    ):
        shown = [(i, case, values[case]) for i, case in enumerate(cases) if case in values]
        trace = traces[name]
        trace.x, trace.y = [i for i, *_ in shown], [value for *_, value in shown]
        trace.hovertext = [f"<b>{_line(case)}</b><br>{what}: {value:,.6g} {evidence.unit}" for _, case, value in shown]
        numbers += [_number(i + offset + WIDTH / 2, value, is_measured=name == MEASURED) for i, _, value in shown]
    limit = traces["limit"]
    limit.x, limit.y = ([], []) if evidence.limit is None else ([-0.5, len(cases) - 0.5], [evidence.limit] * 2)
    top = 1.2 * max(*evidence.measured.values(), *evidence.other.values(), evidence.limit or 0, 1e-12)
    figure.layout.xaxis.update(
        range=[-0.5, max(len(cases), 3) - 0.5],
        tickvals=list(range(len(cases))),
        ticktext=[case.replace("\n", "<br>") for case in cases],
    )
    figure.layout.yaxis.update(range=[0, top])
    figure.layout.yaxis.title.text = evidence.unit
    figure.layout.annotations = [caption(_key(evidence), x=0, y=1.03), *numbers]
    return Verdict(html=f"<b>{_how(evidence).capitalize()}: {evidence.says}.</b>", text=evidence.says)


def _number(x: float, value: float, *, is_measured: bool) -> dict:
    """A value over its bar, on a ground that hides the line which may cross it."""
    font = {"size": 14, "color": INK} if is_measured else {"size": SMALL, "color": NO}
    where = {"xref": "x", "yref": "y", "xanchor": "center", "bgcolor": VEIL, "borderpad": 0, "yshift": 2}
    return caption(short(value), x=x, y=value, **where) | {"font": font}


def _how(evidence: Evidence) -> str:
    return "measured" if evidence.runs else "computed"


def _key(evidence: Evidence) -> str:
    marks = [(FULL, "■", _how(evidence))]
    marks += [(NO, "▨", evidence.called)] * bool(evidence.other)
    marks += [(REFERENCE, "╌╌", evidence.limit_called)] * (evidence.limit is not None)
    return "     ".join(f"<span style='color:{colour}'>{mark} {words}</span>" for colour, mark, words in marks)


def _line(case: str) -> str:
    return case.replace("\n", " ")


def short(value: float) -> str:
    """Four digits: 1.50004 is '1.5', 26.25 stays '26.25', 208.02 is '208', 12345.6 is '12,346'."""
    return f"{value:,.0f}" if value >= 1000 else f"{float(f'{value:.4g}'):g}"


def show(run: Evidence) -> go.Figure:
    """The figure of an Evidence, its numbers as the title."""
    figure = make()
    verdict = draw(figure, run)
    return titled(figure, verdict, run.runs) if run.runs else headed(figure, verdict, "computed: no rank ran")
