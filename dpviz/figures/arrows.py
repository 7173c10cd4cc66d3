"""Gradients as arrows from the origin, in a plane: one trace holds one arrow or several."""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.plane import angle_degrees


def arrow_trace(
    name: str, colour: str, *, width: float, head: int, dash: str = "solid", axes: str = "", **more
) -> go.Scatter:
    """A trace without arrows yet; width and head in px, axes the number of its axis pair."""
    return go.Scatter(
        name=name,
        x=[],
        y=[],
        mode="lines+markers",
        line={"color": colour, "width": width, "dash": dash},
        meta=head,
        marker={
            "symbol": "arrow",
            "angleref": "previous",
            "size": [],
            "color": colour,
            "opacity": 1,
            "line": {"width": 0},
        },
        hovertext=[],
        hoverinfo="text",
        cliponaxis=False,
        xaxis=f"x{axes}",
        yaxis=f"y{axes}",
        **more,
    )


def set_arrows(trace: go.Scatter, tips: np.ndarray, facts: list[str]) -> None:
    """Let the trace end at `tips` (m, 2), with a text each; an arrow without length has no direction to draw."""
    tips, facts = zip(*kept, strict=True) if (kept := _with_length(tips, facts)) else ((), ())
    trace.x = [value for tip in tips for value in (0.0, round(float(tip[0]), 4), None)]
    trace.y = [value for tip in tips for value in (0.0, round(float(tip[1]), 4), None)]
    trace.marker.size = [0, trace.meta, 0] * len(tips)
    trace.hovertext = [fact for fact in facts for _ in range(3)]


def _with_length(tips: np.ndarray, facts: list[str]) -> list[tuple[np.ndarray, str]]:
    return [(tip, fact) for tip, fact in zip(tips, facts, strict=True) if np.linalg.norm(tip) > 1e-6]


def length_and_angle(
    name: str, vector: np.ndarray, reference: np.ndarray, *, reference_is: str = "the true mean"
) -> str:
    """What hovering tells: the length of `vector`, also over the reference's, and the angle between them."""
    length, unit = float(np.linalg.norm(vector)), float(np.linalg.norm(reference))
    times = f", {length / unit:.3f} times {reference_is}'s" if unit > 0 and vector is not reference else ""
    angle = angle_degrees(vector, reference)
    apart = f"<br>{angle:.1f}° from {reference_is}'s" if vector is not reference and np.isfinite(angle) else ""
    return f"<b>{name}</b><br>length {length:.4g}{times}{apart}"
