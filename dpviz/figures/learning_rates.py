"""The learning rate that was in effect after each update, beside the schedule's.

The facts hold `learning_rates` and `learning_rates_expected`, both over the first one, from before the first update on.
"""

import plotly.graph_objects as go

from dpviz.figures.style import RANK_COLOURS, axis, caption, layout, soft
from dpviz.figures.verdict import Verdict, titled

MEASURED = RANK_COLOURS[0]


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 300 px high, as wide as its place."""
    figure = layout(go.Figure(), height=300, margin={"t": 40})
    for name, width, dash in (("measured", 3, "solid"), ("the schedule", 1.5, "dash")):
        line = {"color": MEASURED, "width": width, "dash": dash}
        trace = go.Scatter(name=name, x=[], y=[], mode="lines", line=line, hoverinfo="x+y", cliponaxis=False)
        figure.add_trace(trace)
    words = f"<b>Learning rate ÷ the first one</b> {soft('solid: measured; dashed: the schedule, a step an update')}"
    figure.add_annotation(caption(words, x=0, y=1.02))
    figure.update_layout(
        xaxis=axis("optimizer updates made", range=[0, 100]), yaxis=axis(range=[0, 1.02], dtick=0.25, tickformat=".2f")
    )
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say whether the schedule was kept."""
    pairs = run.facts["learning_rates"], run.facts["learning_rates_expected"]
    for trace, rates in zip(figure.data, pairs, strict=True):
        trace.x, trace.y = list(range(len(rates))), [round(rate, 6) for rate in rates]
    last = len(pairs[0]) - 1
    figure.layout.xaxis.range = [0, last]
    off = [n for n, (one, other) in enumerate(zip(*pairs, strict=True)) if abs(one - other) > 1e-9]
    if not off:
        return Verdict(html=f"<b>On schedule</b> over {last} updates.", text="on schedule: yes", good=True)
    html = f"<b>Off schedule</b> from update {off[0] - 1} on; after {last} the rate is {pairs[0][-1]:.2f} of the first."
    return Verdict(html=html, text=f"on schedule: no, ends at {pairs[0][-1]:.2f}", good=False)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
