"""What every figure shares: colours, fonts, axes, and how numbers are written. Plain plotly, no widgets.

Colours are Okabe and Ito's (distinguishable with any colour vision). Black is the reference, yellow on a dark edge what
comes out of a collective; the other six belong to the ranks, in order, and further ranks repeat them with another dash.
"""

import math

import plotly.graph_objects as go

REFERENCE, REDUCED, REDUCED_EDGE = "#000000", "#F0E442", "#3d3a00"
RANK_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
INK, SOFT_INK, GRID, LINE = "#222222", "#595959", "#ececec", "#bdbdbd"
YES, NO = "#00694c", "#a84300"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
SMALL = 12  # px, the smallest text of a figure

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def rank_colour(rank: int) -> str:
    """The colour of a rank, the same in every figure."""
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def rank_dash(rank: int) -> str:
    """The dash of a rank: solid for the first six, another for each further six."""
    return DASHES[rank // len(RANK_COLOURS) % len(DASHES)]


def rank_pattern(rank: int) -> str:
    """The hatching of a rank's bar: none for the first six, another for each further six."""
    return ("", "/", "x", "-", "|", "+")[rank // len(RANK_COLOURS) % 6]


def rank_text_colour(rank: int) -> str:
    """The rank's colour, darkened until text of 12 px reads well on white."""
    shade = 0.62 if _brightness(rank_colour(rank)) > 120 else 0.85
    return "#" + "".join(f"{round(part * shade):02x}" for part in _parts(rank_colour(rank)))


def tint(colour: str, *, white: float) -> str:
    """The colour mixed with white: 0 leaves it as it is, 1 is white."""
    return "#" + "".join(f"{round(part + white * (255 - part)):02x}" for part in _parts(colour))


def ink_on(colour: str) -> str:
    """The colour of text on a filled area: white on the darker ones."""
    return INK if _brightness(colour) > 120 else "#ffffff"


def _parts(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def _brightness(colour: str) -> float:
    """0 to 255, as the eye weighs red, green and blue."""
    return sum(weight * part for weight, part in zip((0.30, 0.59, 0.11), _parts(colour), strict=True))


def layout(figure: go.Figure, *, height: int, **more) -> go.Figure:
    """Give `figure` the common look: a light card of fixed height (px), also in a dark notebook."""
    margin = {"l": 56, "r": 20, "t": 36, "b": 48} | more.pop("margin", {})
    more = {"showlegend": False, **more}
    figure.update_layout(
        template="none",
        height=height,
        autosize=True,
        margin=margin,
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"family": FONT, "size": 13, "color": INK},
        hovermode="closest",
        uirevision="fixed",
        hoverlabel={
            "bgcolor": "#ffffff",
            "bordercolor": LINE,
            "font": {"family": FONT, "size": 13, "color": INK},
            "align": "left",
        },
        **more,
    )
    return figure


def axis(title: str = "", **more) -> dict:
    """An axis that the reader cannot drag away (ranges change in steps, when `draw` says so)."""
    return {
        "title": {"text": title, "font": {"size": 13}, "standoff": 6},
        "tickfont": {"size": SMALL, "color": SOFT_INK},
        "fixedrange": True,
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": LINE,
        "automargin": False,
    } | more


def caption(text: str, *, x: float, y: float, xref: str = "paper", yref: str = "paper", **more) -> dict:
    """An annotation without an arrow, as a dict for `layout.annotations`."""
    return {
        "text": text,
        "x": x,
        "y": y,
        "xref": xref,
        "yref": yref,
        "showarrow": False,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "font": {"size": 13, "color": INK},
    } | more


def text_trace(name: str, **more) -> go.Scatter:
    """A trace of words at points, not clipped at the axes, each in its own colour: `draw` gives them."""
    font = {"size": SMALL, "color": []} | more.pop("textfont", {})
    more = {"hoverinfo": "skip", "cliponaxis": False, **more}
    return go.Scatter(name=name, x=[], y=[], mode="text", text=[], textfont=font, **more)


def soft(text: str) -> str:
    """A caption's second line: smaller and grey."""
    return f"<span style='color:{SOFT_INK};font-size:{SMALL}px'>{text}</span>"


def power(value: float) -> str:
    """A number as a reader likes it: 3.2e-16 is '3 × 10⁻¹⁶', 2.61 stays '2.6', 0 is '0'."""
    if value == 0:
        return "0"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite"
    mantissa, exponent = f"{value:.0e}".split("e")
    if -3 < int(exponent) < 4:
        return f"{value:.2g}" if abs(value) < 100 else f"{value:.0f}"
    return f"{mantissa} × 10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def power_of_ten(value: float) -> str:
    """1e-12 as '10⁻¹²'; other numbers as `power` writes them."""
    return power(value).removeprefix("1 × ")


def bytes_text(count: float) -> str:
    """Bytes with a decimal prefix, three digits: 14048 is '14.0 kB'."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5 or unit == "GB":
            return (
                f"{count:.0f} B" if unit == "B" else f"{count:.3g} {unit}" if count >= 100 else f"{count:#.3g} {unit}"
            )
        count /= 1000
    raise AssertionError("unreachable")


def binary_text(count: float) -> str:
    """Bytes with a binary prefix, as a setting is written: 4096 is '4 KiB', 8388608 '8 MiB', 1000 '1000 B'."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.4g} B"


def apart(values: list[float], *, gap: float, low: float = -math.inf, high: float = math.inf) -> list[float]:
    """The values moved as little as their order allows until each is at least `gap` above the one below, and all lie
    between `low` and `high`: places of labels that do not cover each other.
    """
    order = sorted(range(len(values)), key=lambda i: values[i])
    groups: list[tuple[list[int], float]] = []  # who stands together, and the middle of these
    for i in order:
        groups.append(([i], values[i]))
        while len(groups) > 1 and groups[-1][1] - groups[-2][1] < gap * (len(groups[-1][0]) + len(groups[-2][0])) / 2:
            members = groups[-2][0] + groups[-1][0]
            groups[-2:] = [(members, sum(values[j] for j in members) / len(members))]
    places = [middle + gap * (n - (len(some) - 1) / 2) for some, middle in groups for n in range(len(some))]
    for i, place in enumerate(places):
        places[i] = max(place, low if i == 0 else places[i - 1] + gap)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], high if i == len(places) - 1 else places[i + 1] - gap)
    moved = dict(zip(order, places, strict=True))
    return [moved[i] for i in range(len(values))]


def step_above(value: float, steps=(1, 2, 5)) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... that is at least `value`: ranges move in steps, so pictures compare."""
    if value <= 0:
        return 1.0
    decade = 10.0 ** math.floor(math.log10(value))
    return next(step * decade for step in (*steps, 10) if step * decade >= value * (1 - 1e-9))
