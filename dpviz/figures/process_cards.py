"""k processes as cards: who each is (PID, memory), what it holds before and after an all-reduce, and what it printed.

A run's `results` hold for each rank any of: pid (int), memory_bytes (int), before and after (a number or a short list),
and printed (a line or a list of lines). What is missing is left out of the cards.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import (
    GRID,
    INK,
    LINE,
    SMALL,
    SOFT_INK,
    axis,
    bytes_text,
    ink_on,
    layout,
    rank_colour,
    text_trace,
)
from dpviz.figures.verdict import Verdict, titled

WIDTH = 0.9  # of a card, in ranks
TALL = 10.0  # height of a card, in units of about 30 px
MOST_NUMBERS, MOST_LINES = 4, 3
LETTERS = {4: 26, 6: 17, 8: 10, 12: 7}  # k up to: letters that fit into a card's width at 1000 px


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 380 px high."""
    figure = layout(go.Figure(), height=380, margin={"l": 8, "r": 8, "t": 12, "b": 8})
    edge = {"color": LINE, "width": 1}
    for name in ("card", "head", "all-reduce"):
        figure.add_trace(
            go.Bar(name=name, x=[], y=[], base=[], width=[], marker={"color": [], "line": edge}, hoverinfo="skip")
        )
    for name, size, colour in (
        ("title", 15, "#ffffff"),
        ("who", SMALL, SOFT_INK),
        ("held", 16, INK),
        ("words", SMALL, SOFT_INK),
    ):
        figure.add_trace(text_trace(name, textfont={"size": size, "color": colour}, hovertext=[], hoverinfo="text"))
    plain = {"showgrid": False, "showticklabels": False, "showline": False, "ticks": ""}
    figure.update_layout(
        xaxis=axis(range=[-0.5, 3.5], **plain), yaxis=axis(range=[-0.1, TALL + 0.1], **plain), barmode="overlay"
    )
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`."""
    k = len(run.results)
    ranks = list(range(k))
    traces = {trace.name: trace for trace in figure.data}
    letters = next((count for most, count in LETTERS.items() if k <= most), 5)
    _set_bars(traces["card"], ranks, base=0, height=TALL, width=WIDTH, colours=["#fbfbfb"] * k)
    _set_bars(traces["head"], ranks, base=TALL - 1.4, height=1.4, width=WIDTH, colours=[rank_colour(r) for r in ranks])
    reduced = all("after" in result for result in run.results)
    _set_bars(traces["all-reduce"], [(k - 1) / 2] * reduced, base=4.6, height=0.9, width=k - 1 + WIDTH, colours=[GRID])
    _set_text(traces["title"], [(rank, TALL - 0.7, f"<b>rank {rank}</b>") for rank in ranks])
    traces["title"].textfont.color = [ink_on(rank_colour(rank)) for rank in ranks]
    _set_text(traces["who"], [(rank, TALL - 2.3, _who(run.results[rank], narrow=k > 6)) for rank in ranks])
    held = []
    for key, height in (("before", 6.3), ("after", 3.7)):
        held += [
            (rank, height, f"holds <b>{_number(run.results[rank][key])}</b>")
            for rank in ranks
            if key in run.results[rank]
        ]
    _set_text(traces["held"], held)
    words = [
        ((k - 1) / 2, 5.05, "<b>all_reduce</b>, a collective: every rank calls it, every rank gets the result")
    ] * reduced
    if k == 1:
        words = [(0, 5.05, "<b>all_reduce</b>")] * reduced
    words += [(rank, 1.2, _lines(run.results[rank].get("printed", ""), letters)) for rank in ranks]
    _set_text(traces["words"], words)
    figure.layout.xaxis.range = [-0.5, max(k, 4) - 0.5]
    return _verdict(run, reduced)


def _set_bars(trace: go.Bar, x: list, *, base: float, height: float, width: float, colours: list[str]) -> None:
    trace.x, trace.y, trace.base = x, [height] * len(x), [base] * len(x)
    trace.width, trace.marker.color = [width] * len(x), colours[: len(x)]


def _set_text(trace: go.Scatter, places: list[tuple[float, float, str]]) -> None:
    x, y, text = ([place[i] for place in places] for i in range(3))
    trace.x, trace.y, trace.text, trace.hovertext = x, y, text, text  # a batch would read the old text back


def _who(result: dict, *, narrow: bool) -> str:
    parts = [f"PID {result['pid']}"] if "pid" in result else []
    if "memory_bytes" in result:
        parts.append(bytes_text(result["memory_bytes"]))
    return ("<br>" if narrow else " · ").join(parts)


def _number(value) -> str:
    numbers = np.atleast_1d(np.asarray(value, dtype=float))
    shown = ", ".join(f"{number:.4g}" for number in numbers[:MOST_NUMBERS])
    return shown + ", …" * (len(numbers) > MOST_NUMBERS)


def _lines(printed, letters: int) -> str:
    lines = printed.splitlines() if isinstance(printed, str) else list(printed)
    short = [line if len(line) <= letters else line[: letters - 1] + "…" for line in lines]
    more = [f"… {len(short) - MOST_LINES} more"] if len(short) > MOST_LINES else []
    return "<br>".join(line.replace("&", "&amp;").replace("<", "&lt;") for line in [*short[:MOST_LINES], *more])


def _verdict(run, reduced: bool) -> Verdict:
    k = len(run.results)
    pids = {result.get("pid") for result in run.results} - {None}
    processes = f"{k} rank{'s' * (k > 1)}" + (f", {len(pids)} process{'es' * (len(pids) > 1)}" if pids else "")
    if not reduced:
        return Verdict(html=f"<b>{processes}.</b>", text=processes)
    after = [np.atleast_1d(np.asarray(result["after"], dtype=float)) for result in run.results]
    same = all(np.array_equal(after[0], other) for other in after[1:])
    end = "all hold the same after the all-reduce" if same else "they do not hold the same after the all-reduce"
    if k == 1:
        end = "its all-reduce has no one to talk to"
    return Verdict(
        html=f"<b>{processes}:</b> {end}.", text=f"{processes}, same after: {'yes' if same else 'no'}", good=same
    )


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
