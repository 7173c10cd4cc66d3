"""A control for a field of kind rows: one slider for each number, rank by rank."""

from __future__ import annotations

import math

import ipywidgets as w
import traitlets

from dpviz.figures.style import rank_colour
from dpviz.questions.base import Field

WIDTHS = {1: 300, 2: 230}  # px of a slider, by how many stand in a row; 190 where there are more


class Rows(w.VBox):
    """Sliders in the shape of `value`, a tuple of tuples, a row a rank; the shape stays what it was at first.

    `.value` follows a slider when it is released, and setting it moves the sliders. `.sliders` has the same shape.
    ValueError for rows of another shape, or a number outside of the field's limits.
    """

    value = traitlets.Tuple()
    description = traitlets.Unicode()

    def __init__(self, one: Field, value, *, description: str, tooltip: str = ""):
        self._field, self._setting = one, False
        self.sliders = tuple(
            tuple(_slider(one, number, rank=rank, of=len(row), tooltip=tooltip) for number in row)
            for rank, row in enumerate(value)
        )
        rows = [w.HBox([_name(rank), *row]) for rank, row in enumerate(self.sliders)]
        flow = w.Layout(flex_flow="row wrap", width="100%")
        title = w.HTML(description, layout=w.Layout(margin="0 0 0 2px", height="auto"))
        super().__init__([title, w.HBox(rows, layout=flow)], layout=w.Layout(width="100%"))
        self.value, self.description = self._read(), description
        for slider in (slider for row in self.sliders for slider in row):
            slider.observe(lambda _: self._moved(), "value")

    @traitlets.validate("value")
    def _checked(self, proposal):
        rows = self._field.check(proposal["value"])
        if [len(row) for row in rows] != [len(row) for row in self.sliders]:
            shape = "/".join(",".join("n" for _ in row) for row in self.sliders)
            raise ValueError(f"{self._field.name} is {rows}, but this control has rows in the shape {shape}.")
        return rows

    @traitlets.observe("value")
    def _show(self, change) -> None:
        self._setting = True  # several sliders move, and it is one change
        try:
            for row, numbers in zip(self.sliders, change["new"], strict=True):
                for slider, number in zip(row, numbers, strict=True):
                    slider.value = number
        finally:
            self._setting = False

    def _moved(self) -> None:
        if not self._setting:
            self.value = self._read()

    def _read(self) -> tuple[tuple, ...]:
        return tuple(tuple(slider.value for slider in row) for row in self.sliders)

    def send_state(self, key=None) -> None:
        """Send what a page needs to show this control; asked for all of it, that of each slider too."""
        super().send_state(key)
        if key is None:
            for row in self.sliders:
                for slider in row:
                    slider.send_state()


def _slider(one: Field, number, *, rank: int, of: int, tooltip: str) -> w.Widget:
    kind, more = (w.IntSlider, {}) if one.integers else (w.FloatSlider, {"step": step_of(one), "readout_format": ".3g"})
    slider = kind(
        number,
        min=one.low,
        max=one.high,
        continuous_update=False,  # each value costs a run
        tooltip=tooltip,
        layout=w.Layout(width=f"{WIDTHS.get(of, 190)}px"),
        **more,
    )
    slider.style.handle_color = rank_colour(rank)
    return slider


def step_of(one: Field) -> float:
    """A power of ten: 40 to 400 steps from end to end."""
    return 10.0 ** math.floor(math.log10((one.high - one.low) / 40))


def _name(rank: int) -> w.Widget:
    return w.Label(f"rank {rank}", layout=w.Layout(width="52px"))
