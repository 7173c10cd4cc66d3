"""A slider and buttons to play and pause, stepping through a figure without a kernel: in a panel, and in a notebook
that nothing runs.

All steps are drawn side by side, each in a column one unit wide on `xaxis`, and one column is in view. The browser
moves the view; nothing is launched, computed or sent. Other axes that shall follow say matches="x"; what is the same in
every step belongs on an axis of its own over or under these.
"""

import plotly.graph_objects as go

from dpviz.figures.style import INK, SMALL, SOFT_INK

FIRST_COLUMN = 100  # times the `key`: other keys have columns of their own
EDGE, FILL = "#9fb0bd", "#dfe5ea"
PLAY = {"frame": {"duration": 900, "redraw": True}, "transition": {"duration": 0}, "mode": "immediate"}


def add(figure: go.Figure, *, x: float, length: float, most: int) -> None:
    """Add the controls below the plot, from `x` on (paper); `most` is the largest number of steps, below 100."""
    buttons = 0.125
    figure.update_layout(
        sliders=[
            {
                "active": 0,
                "x": x + buttons,
                "len": length - buttons,
                "y": 0,
                "pad": {"t": 22, "b": 0},
                "currentvalue": {"visible": False},
                "font": {"size": SMALL, "color": SOFT_INK},
                "bgcolor": FILL,
                "bordercolor": EDGE,
                "tickcolor": SOFT_INK,
                "steps": [_step(number, 1, 0) for number in range(most)],
            }
        ],
        updatemenus=[
            {
                "type": "buttons",
                "x": x,
                "xanchor": "left",
                "y": 0,
                "yanchor": "top",
                "pad": {"t": 16},
                "showactive": False,
                "bgcolor": "#ffffff",
                "bordercolor": EDGE,
                "font": {"size": 14, "color": INK},
                "direction": "right",
                "buttons": [
                    {"label": "▶", "method": "animate", "args": [[], PLAY]},
                    {"label": "❚❚", "method": "animate", "args": [[None], PLAY]},  # nothing more to show: it stops
                ],
            }
        ],
    )


def first_column(key: int) -> int:
    """Where the first step is drawn. A figure that is drawn anew with the same key stays at the step in view, since
    nothing about the view changes; with another key it begins again.
    """
    return FIRST_COLUMN * key


def draw(figure: go.Figure, *, key: int, count: int, begin: int) -> None:
    """Offer `count` steps and bring `begin` into view; both should follow from the key."""
    slider, first = figure.layout.sliders[0], first_column(key)
    steps = [_step(number, count, first) for number in range(len(slider.steps))]
    fixed = slider.to_plotly_json()
    frames = [
        {
            "layout": {
                "xaxis": {"range": [first + number, first + number + 1]},
                "sliders": [{**fixed, "active": number, "steps": steps, "visible": True}],
            }
        }
        for number in range(count)
    ]
    slider.update(active=begin, steps=steps, visible=count > 1)
    figure.layout.updatemenus[0].update(visible=count > 1)
    figure.layout.updatemenus[0].buttons[0].args = [frames, PLAY]
    figure.layout.xaxis.range = [first + begin, first + begin + 1]


def _step(number: int, count: int, first: int) -> dict:
    """Always as many steps, some of them hidden: a list that grows and shrinks is not sent right to a page again."""
    column = first + min(number, count - 1)
    return {
        "method": "relayout",
        "args": ["xaxis.range", [column, column + 1]],
        "label": str(number),
        "visible": number < count,
    }
