"""The relative error of each parameter tensor, beside the dtype's tolerance and rounding: a strip of a figure."""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import INK, NO, YES, axis, caption, power_of_ten, soft

FLOOR, TOP = 1e-18, 1e2  # of the axis; an error of 0 is drawn at the floor
ROUNDING = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}
LONGEST_NAME, MOST_NAMES = 15, 14
TITLE = "<b>Relative error of each tensor</b>"


def add_strip(figure: go.Figure, *, axes: str, x: list[float], y: list[float], left: float) -> None:
    """Add the strip's trace, axes, shapes and caption to `figure`.

    axes: the number of its axis pair ("2" makes xaxis2 and yaxis2)
    x, y: its domain; left: where its caption starts (paper)
    """
    marker = {"size": 10, "color": [], "symbol": [], "line": {"color": INK, "width": 1}}
    figure.add_trace(
        go.Scatter(name="error", x=[], y=[], mode="markers", marker=marker, hovertext=[], hoverinfo="text")
    )
    figure.data[-1].update(xaxis=f"x{axes}", yaxis=f"y{axes}", cliponaxis=False)
    ticks = [10.0**n for n in (0, -5, -10, -15)]
    across = axis(domain=x, anchor=f"y{axes}", type="log", range=[np.log10(FLOOR) - 0.6, np.log10(TOP)], tickangle=0)
    across |= {"tickvals": ticks, "ticktext": [power_of_ten(tick) for tick in ticks]}
    figure.update_layout(
        {
            f"xaxis{axes}": across,
            f"yaxis{axes}": axis(domain=y, anchor=f"x{axes}", range=[4, -1], tickvals=[], ticktext=[]),
        }
    )
    common = {"xref": f"x{axes}", "yref": f"y{axes} domain", "y0": 0, "y1": 1}
    rounding = {"fillcolor": "#d9efe8", "line_width": 0, "layer": "below"}
    figure.add_shape(name="rounding", type="rect", x0=FLOOR / 10, x1=1e-16, **common, **rounding)
    line = {"color": YES, "dash": "dash", "width": 2}
    figure.add_shape(name="tolerance", type="line", x0=1e-12, x1=1e-12, line=line, **common)
    figure.add_annotation(caption(TITLE, x=left, y=y[1] + 0.015, name="errors"))


def draw_strip(figure: go.Figure, run) -> None:
    """Fill the strip from the fact error_by_tensor {name: relative error} and the config's dtype."""
    errors, dtype = run.facts["error_by_tensor"], run.config.get("dtype", "float32")
    tolerance = float(run.facts["tolerance"])
    names, values = list(errors), [float(value) for value in errors.values()]
    trace = next(trace for trace in figure.data if trace.name == "error")
    inside = [value < tolerance for value in values]
    trace.x = [float(f"{min(max(value, FLOOR), TOP) if value == value else TOP:.1e}") for value in values]
    trace.y = list(range(len(names)))
    trace.marker.color = [YES if good else NO for good in inside]
    trace.marker.symbol = ["circle" if good else "x" for good in inside]
    trace.marker.size = 10 if len(names) <= MOST_NAMES else 7
    trace.hovertext = [f"<b>{name}</b><br>largest relative difference {value:.2e}" for name, value in errors.items()]
    shown = range(0, len(names), -(-len(names) // MOST_NAMES))
    figure.layout[f"yaxis{trace.yaxis[1:]}"].update(
        range=[max(len(names), 4) - 0.4, -0.6], tickvals=list(shown), ticktext=[short(names[i]) for i in shown]
    )
    shapes = {shape.name: shape for shape in figure.layout.shapes}
    shapes["rounding"].x1 = ROUNDING[dtype]
    shapes["tolerance"].update(x0=tolerance, x1=tolerance)
    note = next(note for note in figure.layout.annotations if note.name == "errors")
    note.text = f"{TITLE}<br>{soft(f'equal below {power_of_ten(tolerance)}; shaded: rounding')}"


def short(name: str) -> str:
    """'blocks.0.query_key_value.bias' is '0.query_k….bias': the block's number, what fits of the layer, the end."""
    if len(name) <= LONGEST_NAME:
        return name
    *outer, layer, end = name.split(".")
    layer = ".".join([*(part for part in outer if part.isdigit()), layer])
    room = LONGEST_NAME - len(end) - 1
    return f"{layer if len(layer) <= room else layer[: room - 1] + '…'}.{end}"
