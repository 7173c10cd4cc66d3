"""One iteration of every rank: data, forward, backward, and below them when each bucket waited and was sent. The tail,
in which no rank computes any more, is shaded.

A run of `buckets` holds results[rank]["timeline"] (Events in seconds since the latest start of backward, the ranks'
clocks aligned) and results[rank]["buckets"]. The facts hold the medians over repeats that the sentence tells.
"""

import plotly.graph_objects as go

from dpviz.figures.style import (
    INK,
    LINE,
    NO,
    SMALL,
    axis,
    binary_text,
    caption,
    ink_on,
    layout,
    rank_colour,
    rank_text_colour,
    soft,
    step_above,
    tint,
)
from dpviz.figures.verdict import Verdict, titled

LANES = 32  # of buckets on a rank; where there are more, several share one
COMPUTE, BUCKETS = (0.06, 0.36), (0.42, 0.95)  # of a rank's band, from its top
NICE = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # where the axis may end: it moves in steps
EXPOSED = "rgba(213, 94, 0, 0.13)"
KEY = "pale: ready, but waits (hatched: for an earlier bucket); full: is sent; stroke: averaged"
HIGH = 328  # px, of all bands together
PALE = 0.72  # towards white
KINDS = {  # of work: how pale, and the hatching
    "data": (0.45, "/"),
    "forward": (0.45, ""),
    "backward": (0.0, ""),
    "waits": (0.88, "."),
}


def make() -> go.Figure:
    """The figure with every trace in it and nothing drawn: 450 px high, as wide as its place."""
    figure = layout(go.Figure(), height=450, margin={"l": 62, "r": 16, "t": 76, "b": 46}, barmode="overlay")
    for name in (*KINDS, "held back", "waiting", "sent"):
        _, pattern = KINDS.get(name, (0, "/" if name == "held back" else ""))
        figure.add_trace(
            go.Bar(
                name=name,
                orientation="h",
                x=[],
                y=[],
                base=[],
                width=[],
                text=[],
                textposition="inside",
                insidetextanchor="start",
                textangle=0,
                textfont={"size": SMALL, "color": []},
                marker={"color": [], "line": {"width": 0}, "pattern": {"shape": pattern, "size": 5, "solidity": 0.35}},
                hovertext=[],
                hoverinfo="text",
            )
        )
    line = {"color": INK, "width": 1.5}
    mark = {"symbol": "line-ns-open", "size": [], "color": INK, "line": line}
    figure.add_trace(go.Scatter(name="done", x=[], y=[], mode="markers", marker=mark, hovertext=[], hoverinfo="text"))
    figure.update_layout(
        uniformtext={"mode": "hide", "minsize": SMALL},
        xaxis=axis("milliseconds since the last rank began its backward", range=[-50, 100], zeroline=True),
        yaxis=axis(range=[4, 0], showgrid=False, ticks=""),
        shapes=[{"name": "tail", "type": "rect", "fillcolor": EXPOSED, "line": {"width": 0}, "layer": "below"}],
        annotations=[
            caption("", x=0, y=1.06, name="key"),
            caption("", x=1, y=1.0, xanchor="right", name="tail"),
        ],
    )
    figure.layout.shapes[0].update(yref="paper", y0=0, y1=1, x0=0, x1=0)
    figure.layout.xaxis.zerolinecolor = LINE
    return figure


def draw(figure: go.Figure, run) -> Verdict:
    """Change `figure` (of `make`) to show `run`, and say how much of the sending backward hides, and who is late."""
    traces = {trace.name: trace for trace in figure.data}
    k = len(run.results)
    bars: dict[str, list] = {name: [] for name in traces}
    for rank, result in enumerate(run.results):
        _add_work(bars, rank, result)
        _add_buckets(bars, rank, result["buckets"], HIGH / k)
    for name, rows in bars.items():
        if name == "done":
            _set_marks(traces[name], rows, k)
        else:
            _set_bars(traces[name], rows)
    events = [event for result in run.results for event in map(_event, result["timeline"])]
    begin, end = (1e3 * of(event[i] for event in events) for of, i in ((min, 1), (max, 2)))
    computed = 1e3 * max(start for _, start, *_ in bars["waits"]) if bars["waits"] else end
    shape = next(shape for shape in figure.layout.shapes if shape.name == "tail")
    shape.update(x0=round(computed, 3), x1=round(end, 3))
    note = next(note for note in figure.layout.annotations if note.name == "tail")
    note.text = f"<b style='color:{NO}'>tail of this iteration: {end - computed:.0f} ms</b>" if bars["waits"] else ""
    low, high = (1e3 * seconds for seconds in run.facts["backward_range_s"])
    spread = soft(f"backward {low:.0f} to {high:.0f} ms over repeats")
    note = next(note for note in figure.layout.annotations if note.name == "key")
    note.text = f"<b>Each rank's work, below it its buckets</b> {spread}<br>{soft(KEY)}"
    figure.layout.xaxis.range = [-step_above(-begin, NICE) if begin < 0 else 0, step_above(1.02 * end, NICE)]
    shown = list(range(0, k, max(1, -(-k // 16))))
    names = [f"<span style='color:{rank_text_colour(rank)}'><b>rank {rank}</b></span>" for rank in shown]
    figure.layout.yaxis.update(range=[k, 0], tickvals=[rank + 0.21 for rank in shown], ticktext=names)
    return _verdict(run)


def _event(one) -> tuple[str, float, float]:
    """(name, start_s, end_s) of an Event, or of what a file makes of it."""
    found = one if isinstance(one, dict) else vars(one)
    return found["name"], float(found["start_s"]), float(found["end_s"])


def _add_work(bars: dict, rank: int, result: dict) -> None:
    """Data, forward and backward; in backward, what comes after the rank's last gradient is waiting for others."""
    ready = [bucket["ready_s"] for bucket in result["buckets"]]
    for name, start, end in map(_event, result["timeline"]):
        if name not in KINDS:
            continue
        computed = min(max(ready, default=end), end) if name == "backward" else end
        _add_bar(bars[name], rank, start, computed, COMPUTE, name, f"{name}: {_ms(computed - start)}")
        if computed < end:
            told = f"all gradients computed; waits for buckets: {_ms(end - computed)}"
            _add_bar(bars["waits"], rank, computed, end, COMPUTE, "waits", told)


def _add_bar(
    rows: list, rank: int, start: float, end: float, place: tuple, name: str, told: str, shown: str = ""
) -> None:
    pale = KINDS[name][0] if name in KINDS else 0.0 if name == "sent" else PALE
    at = f"from {1e3 * start:.1f} to {1e3 * end:.1f} ms"
    rows.append(
        (rank, start, end, place, name if name in KINDS else shown, pale, f"<b>rank {rank}</b>, {told}<br>{at}")
    )


def _add_buckets(bars: dict, rank: int, buckets: list[dict], high: float) -> None:
    """A lane a bucket, or a few; `high` is the height of the rank's band in px."""
    each = max(1, -(-len(buckets) // LANES))
    lanes = [buckets[i : i + each] for i in range(0, len(buckets), each)]
    top, bottom = BUCKETS
    tall = min((bottom - top) / max(len(lanes), 1), 0.28)
    for number, lane in enumerate(lanes):
        place = (top + tall * number, top + tall * (number + (0.85 if len(lanes) <= 16 else 1.0)))
        name = _named(lane)
        shown = name if 0.85 * tall * high > 15 else ""
        ready, last = min(one["ready_s"] for one in lane), max(one["end_s"] for one in lane)
        handed = min(one.get("handed_s", one["ready_s"]) for one in lane)
        if handed > ready:
            told = f"{name}: ready, held back {_ms(handed - ready)} by an earlier one"
            _add_bar(bars["held back"], rank, ready, handed, place, "held back", told)
        starts = _joined([(one["start_s"], one["end_s"]) for one in lane])
        told = f"{name}: ready, waits {_ms(starts[0][0] - handed)} for a free thread"
        _add_bar(bars["waiting"], rank, handed, last, place, "waiting", told)
        for start, end in starts:
            _add_bar(bars["sent"], rank, start, end, place, "sent", f"{name}: sent in {_ms(end - start)}", shown)
        if len(lanes) <= 16:
            done = max(one["done_s"] for one in lane)
            at = f"<b>rank {rank}</b>, {name}: averaged at {1e3 * done:.1f} ms"
            bars["done"].append((done, rank + sum(place) / 2, place[1] - place[0], at))


def _named(lane: list[dict]) -> str:
    size = binary_text(sum(one["bytes"] for one in lane))
    if len(lane) == 1:
        return f"bucket {lane[0]['index']} ({size})"
    return f"buckets {lane[0]['index']} to {lane[-1]['index']} ({size})"


def _joined(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same times without overlaps."""
    joined: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _set_bars(trace: go.Bar, rows: list[tuple]) -> None:
    trace.base = [round(1e3 * start, 3) for _, start, *_ in rows]
    trace.x = [round(1e3 * (end - start), 3) for _, start, end, *_ in rows]
    trace.y = [round(rank + sum(place) / 2, 4) for rank, _, _, place, *_ in rows]
    trace.width = [round(place[1] - place[0], 4) for _, _, _, place, *_ in rows]
    colours = [tint(rank_colour(rank), white=pale) for rank, _, _, _, _, pale, _ in rows]
    trace.marker.color = colours
    trace.text = [name for *_, name, _, _ in rows]
    trace.textfont.color = [ink_on(colour) for colour in colours]
    trace.hovertext = [told for *_, told in rows]


def _set_marks(trace: go.Scatter, marks: list[tuple], k: int) -> None:
    trace.x, trace.y = [round(1e3 * x, 3) for x, *_ in marks], [round(y, 4) for _, y, *_ in marks]
    trace.marker.size = [round(HIGH / k * tall / 1.4, 1) for _, _, tall, _ in marks]
    trace.hovertext = [told for *_, told in marks]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 0.0995 else f"{1e3 * seconds:.0f} ms"


def _verdict(run) -> Verdict:
    facts, late = run.facts, run.facts["waits_for"]
    equal = bool(facts["gradients_equal"])
    count = len(facts["bucket_bytes"])
    text = f"{count} bucket{'s' * (count != 1)}, gradient equal: {'yes' if equal else 'no'}"
    if facts["overlap_fraction"] is None:
        return Verdict(html="<b>Nothing is sent</b> in this backward.", text=f"nothing sent, {text}")
    if not equal:
        html = "<b>Wrong gradient:</b> it is not that of one process on the whole batch."
        return Verdict(html=html, text=text, good=False)
    exposed, hidden = float(facts["exposed_s"]), f"{100 * float(facts['overlap_fraction']):.0f} % hidden"
    took = f"backward {_ms(facts['backward_s'])}, without sending {_ms(facts['compute_s'])}"
    if late is not None:
        html = f"<b>All wait for rank {late}</b>, {_ms(max(facts['lateness_s']))} late: {took}."
        return Verdict(html=html, text=f"{text}, a rank is late" if run.config["slow_rank"] == late else text)
    if exposed <= 0:
        return Verdict(html=f"<b>All is hidden:</b> {took}.", text=text, good=True)
    return Verdict(html=f"<b>{_ms(exposed)} exposed:</b> {took}; {hidden}.", text=text)


def show(run) -> go.Figure:
    """The figure of a run, its verdict as the title."""
    figure = make()
    return titled(figure, draw(figure, run), run)
