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
    """Write the verdict and the environment of the run, or of several runs, over the figure, which grows by their
    height.
    """
    return headed(figure, verdict, _conditions(run if isinstance(run, list | tuple) else [run]))


def headed(figure: go.Figure, verdict: Verdict, conditions: str) -> go.Figure:
    """Write the verdict and the conditions it holds under over the figure, which grows by their height."""
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
            "subtitle": {"text": conditions, "font": {"size": 12, "color": SOFT_INK}},
        },
        margin_t=figure.layout.margin.t + room,
        height=figure.layout.height + room,
    )
    return figure


def _conditions(runs) -> str:
    """The environment's line; of several runs, part by part what they have in common or how they differ."""
    lines = list(dict.fromkeys(run.environment.line() for run in runs))
    columns = [list(dict.fromkeys(parts)) for parts in zip(*(line.split(", ") for line in lines), strict=False)]
    return ", ".join(_together(parts) for parts in columns)


def _together(parts: list[str]) -> str:
    """'2 ranks' and '4 ranks' as '2 / 4 ranks': the words that they begin and end with stand once."""
    words = [part.split() for part in parts]
    shortest = min(map(len, words))
    before = next((i for i in range(shortest) if len({one[i] for one in words}) > 1), shortest)
    after = next((i for i in range(shortest - before) if len({one[-1 - i] for one in words}) > 1), shortest - before)
    differ = [" ".join(one[before : len(one) - after]) for one in words]
    middle = " / ".join(differ) if len(differ) < 5 else f"{differ[0]} to {differ[-1]}"
    return " ".join(filter(None, [*words[0][:before], middle, *words[0][len(words[0]) - after :]]))
