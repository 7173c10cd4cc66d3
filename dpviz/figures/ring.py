"""The ring, step by step: k ranks with k chunks each, what travels in a step, who has sent how much to whom.

A run of `all_reduce` with algorithm="ring" holds the transfers of one call (results[rank]["transfers"]). All steps are
drawn, side by side, and one is in view: the slider and the play button only move the view, in the browser, and launch
nothing. So both work in a panel as well as in a notebook that nothing runs.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures import ring_layout as at
from dpviz.figures import ring_totals as totals
from dpviz.figures import stepping
from dpviz.figures.ring_course import Course, Transfer, course
from dpviz.figures.style import (
    INK,
    REDUCED,
    SMALL,
    axis,
    binary_text,
    caption,
    layout,
    rank_colour,
    rank_text_colour,
    soft,
)
from dpviz.figures.verdict import Verdict, titled

RANKS = 8
WIDE = 0.57  # of the figure: the ring
SHADES = [[0, "#e9eef2"], [0.99, "#8ea3b4"], [1, REDUCED]]  # of a chunk, over the part of the ranks summed in it
LETTERS = "ABCDEFGH"
HEAD = 12  # px
KEY = "fuller: more ranks summed in the chunk; yellow: all"
WHOLE = "one whole call, as the kernel counted it"
UNKNOWN = "one whole call; who sent to whom was not measured here"
UNDER, OVER = {"xaxis": "x4"}, {"xaxis": "x5"}  # the same in every step


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 480 px high, as wide as its place."""
    figure = layout(go.Figure(), height=480, margin={"l": 8, "r": 10, "t": 58, "b": 74}, barmode="overlay")
    shades = {"colorscale": SHADES, "cmin": 0, "cmax": 1}
    figure.add_trace(_boxes("ranks", hoverinfo="skip", **UNDER))
    figure.add_trace(_boxes("contributions", **shades))
    figure.add_trace(_boxes("arrived", hoverinfo="skip", line={"color": INK, "width": 2.5}))
    for rank in range(RANKS):
        figure.add_trace(_arrow(rank))
    box = {"symbol": "square", "size": 21, "color": [], "line": {"color": [], "width": 2}, **shades}
    figure.add_trace(_text("on its way", marker=box, mode="markers+text", hovertext=[], hoverinfo="text"))
    figure.add_trace(_text("words"))
    figure.add_trace(_text("letters", **OVER))
    figure.add_trace(_text("names", **OVER))
    figure.data[-1].textfont.color, figure.data[-3].textfont.size = [], 13
    plain = {"domain": [0, WIDE], "range": [0, 1], "anchor": "y", "showgrid": False, "showticklabels": False}
    plain |= {"showline": False, "ticks": ""}
    figure.update_layout(
        xaxis=axis(overlaying="x4", **plain),
        xaxis4=axis(**plain),
        xaxis5=axis(overlaying="x4", **plain),
        yaxis=axis(**plain | {"domain": [0, 1], "anchor": "x4"}),
        annotations=[caption("", x=0, y=1.025, name="ring")],
    )
    stepping.add(figure, x=0, length=WIDE, most=2 * (RANKS - 1) + 1)
    totals.add(figure)
    return figure


def _boxes(name: str, *, hoverinfo: str = "text", line: dict | None = None, xaxis: str = "x", **marker) -> go.Bar:
    colour = {"color": "rgba(255,255,255,0)" if line else [], "line": line or {"width": 0}, **marker}
    more = {"hovertext": []} if hoverinfo == "text" else {}
    return go.Bar(
        name=name,
        x=[],
        y=[],
        base=[],
        width=[],
        marker=colour,
        hoverinfo=hoverinfo,
        textposition="none",
        xaxis=xaxis,
        yaxis="y",
        **more,
    )


def _arrow(rank: int) -> go.Scatter:
    colour = rank_colour(rank)
    return go.Scatter(
        name=f"from rank {rank}",
        x=[],
        y=[],
        mode="lines+markers",
        line={"color": colour, "width": 3, "dash": "solid" if rank < 6 else "dot"},
        marker={
            "symbol": "triangle-up",
            "angleref": "previous",
            "size": [],
            "color": colour,
            "opacity": 1,
            "line": {"width": 0},
        },
        hoverinfo="skip",
    )


def _text(name: str, **more) -> go.Scatter:
    font = {"size": SMALL, "color": INK}
    return go.Scatter(name=name, x=[], y=[], text=[], textfont=font, **{"mode": "text", "hoverinfo": "skip"} | more)


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say whether as many bytes left each rank as should.

    Where the run recorded no transfers, it shows in one view what the kernel counted of a whole call. Raises ValueError
    for more than 8 ranks.
    """
    k = len(run.results)
    if k > RANKS:
        raise ValueError(f"this run has {k} ranks, but the ring's chunks are drawn for {RANKS} at most. Use fewer.")
    story = course(run)
    first = stepping.first_column(k)
    traces = {trace.name: trace for trace in figure.data}
    _draw_ranks(traces, story)
    _draw_contributions(traces, story, first)
    _draw_arrows(traces, story, first)
    _draw_transfers(traces["on its way"], story, first)
    _draw_words(traces["words"], story, first)
    totals.draw(figure, run, story, first)
    # the view begins where the reduce-scatter of a ring has ended: half of the way, and another step for each k
    stepping.draw(figure, key=k, count=len(story.held), begin=min(k, len(story.held)) - 1)
    name, key = ("The ring", KEY) if story.watched else (_named(run), WHOLE if story.sent.any() else UNKNOWN)
    note = next(note for note in figure.layout.annotations if note.name == "ring")
    note.text = f"<b>{name}</b><br>{soft(key)}"
    return _verdict(run, story)


def _named(run) -> str:
    return f"{run.config['algorithm']} {run.config['collective'].replace('_', '-')}"


def _draw_ranks(traces: dict, story: Course) -> None:
    """What stays: a tray in each rank's colour, with a place for each chunk."""
    k, wide = story.k, at.cell_width(story.k)
    boxes, letters, names = [], [], []
    for rank in range(k):
        x, y = at.place(rank, k)
        low = y - at.CELL_HIGH / 2
        boxes.append((x, low - at.TRAY, wide * k + 2 * at.EDGE, at.CELL_HIGH + 2 * at.TRAY, rank_colour(rank)))
        boxes.append((x, low, wide * k, at.CELL_HIGH, "#ffffff"))
        names.append((x, low + at.CELL_HIGH + at.TRAY + at.NAME / 2, f"<b>rank {rank}</b>"))
        cells = zip(at.cells(rank, k), LETTERS, strict=False) if story.watched else [(x - wide / 2, "S")]
        letters += [(left + wide / 2, y, letter) for left, letter in cells]
    _set(traces["ranks"], boxes)
    _set_texts(traces["letters"], letters)
    _set_texts(traces["names"], names)
    traces["names"].textfont.color = [rank_text_colour(rank) for rank in range(k)]


def _draw_contributions(traces: dict, story: Course, first: int) -> None:
    k, wide = story.k, 0.92 * at.cell_width(story.k)
    fills, told, arrived = [], [], []
    arrivals = [set(), *({(one.to, one.chunk) for one in step} for step in story.steps)]
    for rank in range(k) if story.watched else []:
        low = at.place(rank, k)[1] - at.CELL_HIGH / 2
        for chunk, left in enumerate(at.cells(rank, k)):
            for number, count in enumerate(story.held[:, rank, chunk].tolist()):
                part = count / story.full
                x = first + number + left + at.cell_width(k) / 2
                fills.append((x, low, wide, part * at.CELL_HIGH, round(part, 3)))
                told.append(_told(rank, chunk, count, story))
                if (rank, chunk) in arrivals[number]:
                    arrived.append((x, low, wide, at.CELL_HIGH))
    _set(traces["contributions"], fills)
    traces["contributions"].hovertext = told
    _set(traces["arrived"], arrived)


def _told(rank: int, chunk: int, count: int, story: Course) -> str:
    what = "the whole sum" if count >= story.full > 1 else f"{count} of {story.full} ranks summed"
    return f"<b>rank {rank}, chunk {LETTERS[chunk]}</b><br>{what if count else 'nothing yet'}"


def _draw_arrows(traces: dict, story: Course, first: int) -> None:
    arrows: dict[int, list] = {rank: [] for rank in range(RANKS)}
    for number, step in enumerate(story.steps, start=1):
        for one in step:
            arrows[one.sender].append((first + number, at.path(one.sender, one.to, story.k)))
    for sender, to, along in story.pairs():
        arrows[sender].append((first, at.path(sender, to, story.k, along=along)))
    for rank, paths in arrows.items():
        trace = traces[f"from rank {rank}"]
        trace.x = [value for column, path in paths for value in (*(round(column + x, 4) for x, _ in path), None)]
        trace.y = [value for _, path in paths for value in (*(round(y, 4) for _, y in path), None)]
        trace.marker.size = [size for _, path in paths for size in (*[0] * (len(path) - 1), HEAD, 0)]


def _draw_transfers(trace: go.Scatter, story: Course, first: int) -> None:
    """A box in the middle of each arrow: the chunk, shaded by what is summed in it."""
    boxes = [(number, one) for number, step in enumerate(story.steps, start=1) for one in step]
    middles = [at.middle(one.sender, one.to, story.k) for _, one in boxes]
    texts = [(first + n + x, y, LETTERS[one.chunk]) for (n, one), (x, y) in zip(boxes, middles, strict=True)]
    _set_texts(trace, texts)
    trace.hovertext = [_travels(one, story) for _, one in boxes]
    trace.marker.color = [round(one.contributions / story.full, 3) for _, one in boxes]
    trace.marker.line.color = [rank_colour(one.sender) for _, one in boxes]
    trace.marker.size = 21 if story.k < 7 else 17


def _travels(one: Transfer, story: Course) -> str:
    what = "the whole sum" if one.contributions >= story.full > 1 else f"{one.contributions} of {story.full} ranks"
    summed = f"{what}, {one.bytes:,} B in {1e3 * one.seconds:.2f} ms"
    return f"<b>rank {one.sender} → rank {one.to}: chunk {LETTERS[one.chunk]}</b><br>{summed}"


def _draw_words(trace: go.Scatter, story: Course, first: int) -> None:
    words = []
    for number in range(len(story.held)) if story.watched else []:
        if story.k == 1:
            lines = ["", "", "no one to send to"]
        elif number == 0:
            lines = ["<b>before</b>", f"{story.k} chunks a rank", soft("press ▶")]
        else:
            phase, turn, of = story.phase(number)
            count = max(one.contributions for one in story.steps[number - 1])
            sums = f"{count} + own = {count + 1} summed" if phase == "reduce_scatter" else "finished chunks go round"
            lines = [f"<b>{phase.replace('_', '-')}</b>", f"step {turn} of {of}", soft(sums)]
        words.append((first + number + 0.5, 0.5, "<br>".join(lines)))
    _set_texts(trace, words)


def _set(trace: go.Bar, boxes: list[tuple]) -> None:
    """(x of the middle, y of the bottom, width, height, colour or shade) each; those of equal looks have no colour."""
    trace.x, trace.base, trace.width, trace.y = ([round(box[i], 4) for box in boxes] for i in range(4))
    if trace.name != "arrived":
        trace.marker.color = [box[4] for box in boxes]


def _set_texts(trace: go.Scatter, texts: list[tuple]) -> None:
    trace.x, trace.y = ([round(text[i], 4) for text in texts] for i in range(2))
    trace.text = [words for _, _, words in texts]


def _verdict(run, story: Course) -> Verdict:
    if story.k == 1:
        return Verdict(html="<b>Nothing is sent:</b> one rank has no one to send to.", text="0 S sent", good=True)
    facts, config = run.facts, run.config
    largest = int(np.argmax(facts["payload_bytes"]))
    sent, formula = float(facts["bytes_over_payload"][largest]), float(facts["formula_bytes_over_payload"][largest])
    all_reduce, naive = config["collective"] == "all_reduce", config["algorithm"] == "naive"
    law = "k−1" if naive else "2(k−1)/k" if all_reduce else "(k−1)/k"
    text = f"{_named(run)}, a rank sends {sent:.2f} S"
    if not all(facts["equal"]):
        html = f"<b>Wrong result</b> on some rank, with {sent:.2f} S sent."
        return Verdict(html=html, text=f"{text}, result: wrong", good=False)
    payload, framing = facts["payload_bytes"][largest], facts["framing_bytes_predicted"][largest] or 0
    if abs(sent - framing / payload - formula) > 0.02 * formula:
        html = f"<b>A rank sends {sent:.2f} S</b> where {law} says {formula:.2f}; S = {binary_text(payload)}."
        return Verdict(html=html, text=text, good=False)
    if naive:
        return Verdict(html=f"<b>Rank 0 sends {sent:.2f} S</b> and receives as much; the others 1 S each.", text=text)
    steps = f"in {len(story.steps)} steps of S/{story.k}, " if story.steps else ""
    says = f"as {law} says" if f"{sent:.2f}" == f"{formula:.2f}" else f"{law} = {formula:.2f} S and headers"
    return Verdict(html=f"<b>Each rank sends {sent:.2f} S</b> {steps}{says}.", text=text, good=True)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
