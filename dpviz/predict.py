"""Ask before showing: the learner's guess is kept, and later stands beside what the run answered."""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as w

from dpviz.widgets.looks import LONGEST_REPR, sheet
from dpviz.widgets.said import Said
from dpviz.wrong_value import WrongValue

_guesses: dict[tuple, str] = {}  # a cell that is run again, by accident or not, must not forget the guess


def predict(question: str, options: Sequence[str]) -> Prediction:
    """Return a question with its possible answers, to be shown by a cell: `guess = dp.predict(...)`, `guess`.

    Nothing is chosen beforehand, unless this question has been answered in this kernel. `guess.reveal(answer,
    evidence=...)` tells later how it went. Raises ValueError unless there are at least two different options.
    """
    return Prediction(question, options)


class Prediction(w.VBox):
    """A question that keeps the learner's guess in `.guess` (None until one is made)."""

    def __init__(self, question: str, options: Sequence[str]):
        check_question(question, options)
        self.question, self.options = question, tuple(options)
        asked_before = _guesses.get((question, self.options))
        self._choice = w.RadioButtons(
            options=self.options,
            value=asked_before,
            layout=w.Layout(width="auto", margin="0 0 0 8px"),
            orientation="vertical",
        )
        self._choice.observe(self._keep, "value")
        asked = w.HTML(f"<div class='dpviz-question'>{html.escape(question)}</div>")
        self._told = w.HTML()
        super().__init__([w.HTML(sheet()), asked, self._choice, self._told], layout=w.Layout(width="100%"))
        self.add_class("dpviz-panel")

    def _keep(self, change) -> None:
        _guesses[self.question, self.options] = change["new"]

    @property
    def guess(self) -> str | None:
        return self._choice.value

    def __repr__(self) -> str:
        kept = "no guess yet" if self.guess is None else f"guess: {self.guess}"
        room = LONGEST_REPR - len(kept) - 3
        asked = self.question if len(self.question) <= room else self.question[: room - 1] + "…"
        return f"{asked} ({kept})"[:LONGEST_REPR]

    def reveal(self, answer: str, *, evidence=None, computed: bool = False) -> None:
        """Show the measured answer beside the guess, then `evidence`: a figure, a table, or several of them in a list.

        answer: one of the options, as the run decided it, or with `computed` a formula. The guess may be missing, as
        when a notebook runs by itself.
        Raises ValueError for an answer that was not among the options.
        """
        self._check(answer)
        told = _revealed(guess=self.guess, answer=answer, computed=computed)
        self._told.value = f"<div class='dpviz-told'>{told._repr_html_()}</div>"
        shown_in_turn(told, evidence)

    def _check(self, answer: str) -> None:
        if answer not in self.options:
            raise WrongValue(
                f"the answer is {answer!r}, but it must be one of the options: {', '.join(map(repr, self.options))}."
            )


def check_question(question: str, options: Sequence[str]) -> None:
    """Raise ValueError unless it is a text with at least two different options."""
    texts = isinstance(question, str) and isinstance(options, list | tuple) and all(isinstance(o, str) for o in options)
    if not texts:
        raise WrongValue("give the question as a text, and its options as a list of texts.")
    if len(options) < 2 or len(set(options)) < len(options):
        raise WrongValue(f"the options are {options!r}, but there must be two or more, each different, in a list.")


def shown_in_turn(*parts) -> None:
    """Display each part, which may be a list of things to display, or None for nothing."""
    from IPython.display import display  # only here, so that a plain script may import the module

    for part in parts:
        for one in part if isinstance(part, list | tuple) else [] if part is None else [part]:
            display(one)


def _revealed(*, guess: str | None, answer: str, computed: bool) -> Said:
    """How a guess went, in one or two sentences."""
    measured = f"{'Computed' if computed else 'Measured'}: {answer}."
    if guess is None:
        return Said("", measured, "No guess was made this time.")
    if guess == answer:
        return Said("✓", measured, "That is what you expected.")
    return Said("→", measured, f"You expected: {guess}. The evidence shows where the two part.")
