"""What a rank holds, kind by kind: the colour and hatching of each, and how bytes and model sizes are written.

The four kinds of model state come first, in the order in which bars stack them; then what is there for a moment only.
"""

import plotly.graph_objects as go

from dpviz.figures.style import tint
from dpviz.theory import memory

STATE = memory.State._fields  # parameters, gradients, optimizer, master
COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "master": "#56B4E9",
    "gathered": "#CC79A7",
    "activations": "#7d8a97",
    "other": "#d3d8dd",
}
HATCHES = {"parameters": "", "gradients": "/", "optimizer": "", "master": "x", "gathered": "\\"}
HATCHES |= {"activations": "", "other": "."}
NAMES = {"other": "temporary"}  # the others are called what they are
PALE = 0.8  # towards white: not measured, by the formula
UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def bar(kind: str, *, pale: bool, **more) -> go.Bar:
    """An empty bar of this kind, full where it is measured, pale where only the formula speaks."""
    fill = tint(COLOURS[kind], white=PALE) if pale else COLOURS[kind]
    return go.Bar(
        name=f"{kind} by formula" if pale else kind,
        x=[],
        y=[],
        marker={
            "color": fill,
            "line": {"color": COLOURS[kind] if pale else "#ffffff", "width": 1},
            "pattern": {"shape": HATCHES[kind], "size": 7, "solidity": 0.15, "fgcolor": "#ffffff"}
            | {"fillmode": "overlay"},
        },
        hovertext=[],
        hoverinfo="text",
        **more,
    )


def bytes_axis(top: float, *, parts: int = 4) -> tuple[dict, str]:
    """An axis from 0 to `top` bytes: its range and ticks as a dict, and its unit, as 'MB'."""
    unit = max(0, min(len(UNITS) - 1, (len(f"{top:.0f}") - 1) // 3))
    ticks = [top * part / parts for part in range(parts + 1)]
    texts = [f"{tick / 1000**unit:.3g}" for tick in ticks]
    return {"range": [0, top], "tickvals": ticks, "ticktext": texts}, UNITS[unit]


def size_text(count: float, *, digits: int = 3) -> str:
    """Bytes with a decimal prefix, as the courses write them: 38.5e9 is '38.5 GB', 80e12 '80 TB'."""
    unit = max(0, min(len(UNITS) - 1, (len(f"{count:.0f}") - 1) // 3))
    return f"{count / 1000**unit:.{digits}g} {UNITS[unit]}"


def model_text(parameters: float) -> str:
    """The size of a model as people say it: 7e9 is '7B', 71114 '71.1k'."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.3g}{letter}"
    return f"{parameters:.0f}"
