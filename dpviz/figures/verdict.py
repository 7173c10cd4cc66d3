"""What a figure says in words. Every figure module's `draw(figure, run)` returns a Verdict."""

from dataclasses import dataclass

import plotly.graph_objects as go

from dpviz.figures.style import NO, SOFT_INK, YES


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A figure's sentence.

    html: the sentence; its first `<b>` holds the answer. Only what plotly's titles know too: b, i, br, sup, sub.
    text: a few plain words and rounded numbers, the same on every run, for a panel's repr.
    good: whether things are as data parallelism wants them; None where the question is not of that kind.
    """

    html: str
    text: str
    good: bool | None = None


def titled(figure: go.Figure, verdict: Verdict, run) -> go.Figure:
    """Write the verdict and the run's environment over the figure, which grows by their height."""
    colour = {True: YES, False: NO}.get(verdict.good)
    words = verdict.html.replace("<b>", f"<b style='color:{colour}'>", 1) if colour else verdict.html
    room = 52
    figure.update_layout(
        title={
            "text": words,
            "font": {"size": 16},
            "x": 0.01,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 12},
            "subtitle": {"text": run.environment.line(), "font": {"size": 12, "color": SOFT_INK}},
        },
        margin_t=figure.layout.margin.t + room,
        height=figure.layout.height + room,
    )
    return figure
