"""What an update costs a rank: a counter of all-reduces with the bytes they send, and the activations it keeps. Two
strips of the accumulation figure.
"""

import plotly.graph_objects as go

from dpviz.figures.style import (
    INK,
    LINE,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SOFT_INK,
    axis,
    bytes_text,
    caption,
    soft,
    step_above,
)

KEPT, AGAIN = "#7d8a97", "#cfd6dc"
AT = (0, 0.9, 2.4, 3.3)  # where the four bars of activations stand
TICKS = (0.45, 2.85)


def add_bytes(figure: go.Figure, *, axes: str, x: list[float], y: list[float], left: float) -> None:
    """Add the counter and the bar of bytes. `axes` is the number of the axis pair, x and y its domain, `left` where
    captions start (paper).
    """
    where = {"xaxis": f"x{axes}", "yaxis": f"y{axes}"}
    bar = {"color": REDUCED, "line": {"color": REDUCED_EDGE, "width": 1.5}}
    figure.add_trace(
        go.Bar(name="sent", x=[], y=[], orientation="h", width=0.8, marker=bar, hovertext=[], hoverinfo="text", **where)
    )
    line = {"color": REFERENCE, "width": 1.5, "dash": "dash"}
    figure.add_trace(
        go.Scatter(name="formula", x=[], y=[], mode="lines", line=line, hovertext=[], hoverinfo="text", **where)
    )
    figure.update_layout(
        {
            f"xaxis{axes}": axis(domain=x, anchor=f"y{axes}", range=[0, 1], tickvals=[], ticktext=[], showgrid=False),
            f"yaxis{axes}": axis(domain=y, anchor=f"x{axes}", range=[-0.6, 0.6], tickvals=[], showgrid=False),
        }
    )
    figure.add_annotation(caption("", x=left, y=y[1] + 0.02, name="counter"))


def draw_bytes(figure: go.Figure, run) -> None:
    """Fill it from the facts all_reduces, wire_bytes, wire_bytes_predicted and gradient_bytes."""
    facts, k, steps = run.facts, len(run.results), int(run.config["accumulation_steps"])
    calls, sent = int(facts["all_reduces"]), max(facts["wire_bytes"])
    predicted = max(facts["wire_bytes_predicted"])
    once = predicted / calls if calls else 2 * (k - 1) / k * facts["gradient_bytes"]
    traces = {trace.name: trace for trace in figure.data}
    how = run.environment.wire.partition(":")[0]
    bar, line = traces["sent"], traces["formula"]
    bar.x, bar.y = [int(sent)], [0]
    bar.hovertext = [f"a rank sent {int(sent):,} B an update ({how})<br>predicted {int(predicted):,} B"]
    marks = [once] if steps == 1 else [once, steps * once]
    line.x = [at for mark in marks for at in (mark, mark, None)]
    line.y = [0.6, -0.6, None] * len(marks)
    line.hovertext = [
        f"{n} all-reduce{'s' * (n > 1)}: {int(n * once):,} B" for n in (1, steps)[: len(marks)] for _ in "123"
    ]
    end = max(steps, 2) * once or 1.0
    words = ["1 all-reduce", f"{steps}"][: len(marks)] if once else []
    figure.layout[f"xaxis{bar.xaxis[1:]}"].update(
        range=[0, 1.06 * end], tickvals=[float(f"{mark:.6g}") for mark in marks if once], ticktext=words
    )
    note = next(note for note in figure.layout.annotations if note.name == "counter")
    number = f"<span style='font-size:24px'><b>{calls}</b></span> <b>all-reduce{'s' * (calls != 1)} an update</b>"
    each = f"{bytes_text(sent)} sent by a rank" if k > 1 else "one rank has no one to send to"
    note.text = f"{number}<br>{soft(each)}"


def add_activations(figure: go.Figure, *, axes: str, x: list[float], y: list[float], left: float) -> None:
    """Add the four bars of activations; arguments as of `add_bytes`."""
    figure.add_trace(
        go.Bar(
            name="activations",
            x=[],
            y=[],
            orientation="h",
            width=0.82,
            text=[],
            textposition="outside",
            cliponaxis=False,
            textfont={"size": 12, "color": []},
            marker={
                "color": [KEPT, AGAIN, KEPT, AGAIN],
                "line": {"color": [], "width": []},
                "pattern": {"shape": ["", "/", "", "/"], "fgcolor": SOFT_INK, "solidity": 0.25, "size": 6},
            },
            hovertext=[],
            hoverinfo="text",
            xaxis=f"x{axes}",
            yaxis=f"y{axes}",
        )
    )
    figure.update_layout(
        {
            f"xaxis{axes}": axis(domain=x, anchor=f"y{axes}", range=[0, 1], tickvals=[], showgrid=False),
            f"yaxis{axes}": axis(domain=y, anchor=f"x{axes}", range=[3.9, -0.6], tickvals=TICKS, showgrid=False),
        }
    )
    figure.layout[f"yaxis{axes}"].update(ticktext=["", ""], ticks="", linecolor=LINE, showline=True)
    figure.add_annotation(
        caption(
            f"<b>Activations a rank keeps</b><br>{soft('hatched: recomputed in backward')}",
            x=left,
            y=y[1] + 0.015,
            name="activations",
        )
    )


def draw_activations(figure: go.Figure, run) -> None:
    """Fill them from the fact activations; the run's own setting is outlined."""
    found, config = run.facts["activations"], run.config
    names = ("micro_batch_kept", "micro_batch_recomputed", "window_kept", "window_recomputed")
    values = [found[name] for name in names]
    inputs = config.get("inputs")
    size = 1 if inputs else int(config["micro_batch"])
    window = len(run.records[0][0].values["all_reduces_by_micro_batch"])
    trace = next(trace for trace in figure.data if trace.name == "activations")
    trace.x, trace.y = [value or 0 for value in values], list(AT)
    trace.text = ["not tried" if value is None else bytes_text(value) for value in values]
    own = 1 if config["recompute"] else 0
    trace.marker.line.color = [INK if i == own else LINE for i in range(4)]
    trace.marker.line.width = [2.5 if i == own else 0.5 for i in range(4)]
    trace.textfont.color = [INK if i == own else SOFT_INK for i in range(4)]
    words = ("as set", "recomputed") if own else ("as set", "kept")
    trace.hovertext = [
        f"{samples} samples {'at once' if i > 1 else 'at a time'}, {('kept', 'recomputed in backward')[i % 2]}: "
        + ("not tried, so many at once" if value is None else f"{value:,} B")
        + (f"<br><b>{words[0]}</b>" if i == own else "")
        for i, (value, samples) in enumerate(zip(values, (size, size, window * size, window * size), strict=True))
    ]
    number = trace.xaxis[1:]
    top = step_above(1.05 * max(max(value or 0 for value in values), 1), (1, 1.5, 2, 3, 5, 7))
    figure.layout[f"xaxis{number}"].update(range=[0, 1.42 * top])
    figure.layout[f"yaxis{number}"].ticktext = [f"{size} at a time", f"{window * size} at once"]
