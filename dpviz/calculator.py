"""A calculator: controls -> config -> a function called here, at every move -> one figure and one sentence.

It looks like a panel, but no rank runs: for closed forms, which take milliseconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import ipywidgets as w

from dpviz.widgets import messages
from dpviz.widgets.controls import COMMON, changed, make_controls
from dpviz.widgets.frame import Frame
from dpviz.widgets.looks import span

OWN = "own"  # the preset that stands for none
STALE = "<div class='dpviz-verdict dpviz-soft'>The figure is that of the last setting that could be computed.</div>"
NAMES = {"params": "model"}  # of a choice of presets, where the field's own name says less


def calculator(function: Callable, config, *, figure, controls, presets: dict | None = None) -> Calculator:
    """Return a widget that calls `function(config)` in this process while a control is moved, and draws the answer.

    function    the closed form, such as dpviz.planner.Config.plan
    config      the Config to begin with
    figure      a module of dpviz.figures, or any object with make() -> plotly Figure and draw(figure, answer) ->
                Verdict; where it also has notes(answer) -> list of sentences, these stand below
    controls    names of fields of the config; or a dict from name to a range (low, high), a tuple of options, or None
    presets     {field: {name: value}}: a choice of names that sets the field's control, whose options hold the values

    `.answer` is what the function returned, `.config` what it was given. What the function raises stands below the
    figure, which stays as it was. Raises ValueError for a wrong name or range.
    """
    return Calculator(function, config, figure=figure, controls=controls, presets=presets)


class Calculator(Frame):
    """See `calculator`."""

    def __init__(self, function, config, *, figure, controls, presets=None):
        self._function, self._start = function, config
        self._notes_of = getattr(figure, "notes", lambda answer: [])
        self.config = self.answer = None
        self._one_at_a_time = threading.RLock()
        self._setting = False  # several controls move, and it is one change
        made = make_controls(config, controls, live=True)
        self._preset_values = presets or {}
        self.presets = {name: _choice(name, values, made) for name, values in self._preset_values.items()}
        super().__init__(made, figure, first=tuple(self.presets.values()))
        self._foot.add_class("dpviz-notes")  # room for some, so that nothing jumps
        for name, control in made.items():
            control.observe(lambda _, name=name: self._moved(name), "value")
        for name, choice in self.presets.items():
            choice.observe(lambda change, name=name: self._chosen(name, change["new"]), "value")
        self._compute()

    def _moved(self, name: str) -> None:
        with self._one_at_a_time:
            if self._setting:
                return
            if name in self.presets:
                self._set(self.presets[name], _matching(self.controls[name].value, self._preset_values[name]))
            self._compute()

    def _chosen(self, name: str, value) -> None:
        with self._one_at_a_time:
            if not self._setting and value != OWN:
                self._set(self.controls[name], value)
                self._compute()

    def _set(self, widget: w.Widget, value) -> None:
        self._setting = True
        try:
            widget.value = value
        finally:
            self._setting = False

    def _compute(self) -> None:
        began, values, lines = time.perf_counter(), self._values(), []
        try:
            config = changed(self._start, values)
            with self._prints_into(lines):
                answer = self._function(config)
            verdict = self._picture(answer, lines)
        except Exception as error:  # of the Config, the function or the figure: nothing else would show it
            self._facts, self._facts_of = type(error).__name__, values
            self._verdict.value = STALE if self.answer is not None else ""
            self._show(messages.explained(error) + messages.printed(lines))
            self._say("no", "✗ failed", values)
            return
        self.config, self.answer = config, answer
        self._conclude_with(verdict, values, *self._notes_of(answer), "Computed, not measured: no rank ran.")
        self._show(messages.printed(lines))
        self._say("yes", "✓", values, span(f" {1e3 * (time.perf_counter() - began):.0f} ms", "dpviz-soft"))


def _choice(name: str, values: dict, controls: dict[str, w.Widget]) -> w.Dropdown:
    """The choice of presets for the control `name`. Raises ValueError where they are not among its options."""
    offered = [value for _, value in getattr(controls.get(name), "options", ())]
    missing = [f"{label} ({value:g})" for label, value in values.items() if value not in offered]
    if missing:
        raise ValueError(
            f"the control of {name} does not offer the preset {missing[0]}. Give the control a tuple of options, "
            "three or more, with all presets among them."
        )
    options = [*values.items(), (OWN, OWN)]
    now = _matching(controls[name].value, values)
    room = w.Layout(width="auto")
    return w.Dropdown(options=options, value=now, description=NAMES.get(name, name), layout=room, **COMMON)


def _matching(value: float, presets: dict) -> object:
    return value if value in presets.values() else OWN
