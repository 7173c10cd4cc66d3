"""A score that forgives: a guess before the run, a second one beside the evidence, and half a point for each that is
right.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

import ipywidgets as w

from dpviz.figures import cards
from dpviz.predict import Prediction, check_question, shown_in_turn
from dpviz.widgets.looks import LONGEST_REPR, sheet, span
from dpviz.wrong_value import WrongValue

_boards: dict[str, Scoreboard] = {}  # a cell that is run again, by accident or not, must not forget the points
STEPS = {0: "No point", 0.5: "½ point", 1: "1 point"}


def scoreboard(name: str) -> Scoreboard:
    """Return the scoreboard of that name, the same one until the kernel is restarted.

    `card = board.predict("1", sentence, options)` asks, `card.reveal(answer, evidence=...)` shows the evidence and asks
    again; the board shows every card and the sum. Raises ValueError for a name that is no text. Built in lesson 12.
    """
    _check_text(name, "a scoreboard")
    if name not in _boards:
        _boards[name] = Scoreboard(name)
    return _boards[name]


class Scoreboard(w.VBox):
    """Cards by name in `.cards`, and what they count in `.points`: at most one point a card, never less than none."""

    def __init__(self, name: str):
        self.name = name
        self.cards: dict[str, Card] = {}
        self._table = w.HTML(layout=w.Layout(width="100%"))
        super().__init__([w.HTML(sheet()), self._table], layout=w.Layout(width="100%"))
        self.add_class("dpviz-panel")
        self.draw()

    def predict(self, name: str, sentence: str, options: Sequence[str]) -> Card:
        """Return the card of that name, to be shown by a cell. It is a new one only where the question is.

        Raises ValueError for a name that is no text, and as `dp.predict` does for the question.
        """
        _check_text(name, "a card")
        check_question(sentence, options)
        known = self.cards.get(name)
        if known is None or known.asked != (sentence, tuple(options)):
            self.cards[name] = Card(name, sentence, options, board=self)
            self.draw()
        return self.cards[name]

    @property
    def points(self) -> float:
        return sum(card.points for card in self.cards.values())

    def so_far(self) -> str:
        """The sum, as '2½ of 4 points': of 4 cards whose verdict has been read."""
        read = [card for card in self.cards.values() if card.verdict_read]
        return f"{number(self.points)} of {len(read)} point{'s' * (len(read) != 1)}"

    def __repr__(self) -> str:
        revealed = [card for card in self.cards.values() if card.answer is not None]
        computed = sum(card.computed for card in revealed)
        how = f"{len(revealed) - computed} decided by runs" + f", {computed} by a formula" * (computed > 0)
        return f"{self.name}: {_cards(len(self.cards))}, {how}, {self.so_far()}"[:LONGEST_REPR]

    def draw(self) -> None:
        """Show the cards as they are now; what is not decided yet is not told."""
        rows = "".join(card.row() for card in self.cards.values())
        again = [html.escape(name) for name, card in self.cards.items() if card.verdict_read and not card.is_clear]
        heads = "".join(f"<th>{head}</th>" for head in ("card", "before the run", "beside the evidence", "the run", ""))
        look = f" Look again at {' and '.join(filter(None, [', '.join(again[:-1]), again[-1]]))}." if again else ""
        self._table.value = (
            f"<div class='dpviz-question'>{html.escape(self.name)}: {self.so_far()}</div>"
            f"<div class='dpviz-soft'>{_cards(len(self.cards))}. Half a point for each of two guesses.{look}</div>"
            f"<table class='dpviz-score'><tr>{heads}</tr>{rows}</table>"
        )


class Card(Prediction):
    """A question that is asked twice: before the run, where the guess stays in `.first`, and beside its evidence."""

    def __init__(self, name: str, sentence: str, options: Sequence[str], *, board: Scoreboard):
        self.name, self.asked, self.board = name, (sentence, tuple(options)), board
        self.answer: str | None = None
        self.first: str | None = None
        self.measured, self.computed = "", False
        super().__init__(f"{name}. {sentence}", options)
        self._second = SecondLook(self)

    @property
    def second(self) -> str | None:
        """The guess made beside the evidence, None until the verdict has been read."""
        return self._second.choice.value if self.verdict_read else None

    @property
    def verdict_read(self) -> bool:
        return self._second.is_done

    @property
    def is_clear(self) -> bool:
        """Whether the evidence, at least, was read as it was meant."""
        return self.verdict_read and self.second == self.answer

    @property
    def points(self) -> float:
        """Half a point for each right guess, once the verdict has been read."""
        return sum(guess == self.answer for guess in (self.first, self.second)) / 2 if self.verdict_read else 0.0

    def reveal(self, answer: str, *, evidence=None, computed: bool | None = None) -> None:
        """Show `evidence`, and ask again; a click then shows the answer.

        evidence: an Evidence of dpviz.figures.cards, which is drawn, and whose numbers the board repeats; or any figure
        or table; or several of these in a list. The guess made before is fixed from now on. Where nobody can click, as
        in a file without a kernel, the answer stands there as text.
        computed: whether a formula decided; unless given, it is so where there is Evidence, and none of it has runs.
        Raises ValueError for an answer that was not among the options.
        """
        self._check(answer)
        if self.answer is None:
            self.first, self._choice.disabled = self.guess, True
            self._second.choice.value = self.first
        self.answer = answer
        parts = evidence if isinstance(evidence, list | tuple) else [evidence]
        drawn = [part for part in parts if isinstance(part, cards.Evidence)]
        self.measured = "; ".join(part.says for part in drawn)
        self.computed = bool(drawn) and not any(part.runs for part in drawn) if computed is None else computed
        self._told.value = span("The evidence stands below. Now guess once more, there.", "dpviz-soft")
        self._second.draw()
        self.board.draw()
        shown_in_turn(*(cards.show(part) if isinstance(part, cards.Evidence) else part for part in parts), self._second)

    @property
    def how(self) -> str:
        return "Computed" if self.computed else "Measured"

    def told(self) -> str:
        """The verdict, and what it is made of."""
        first, second = (guess == self.answer for guess in (self.first, self.second))
        if first and second:
            return "You expected it, and the evidence did not shake you."
        if second:
            return "You read it from the evidence." if self.first is None else "The evidence changed your mind."
        if first:
            return "Your first guess had it."
        return "The evidence shows where the two part." if self.second else "No guess was made this time."

    def row(self) -> str:
        """A row of the board; the answer is left out until the verdict has been read."""
        soft = "<br>" + span(html.escape(self.measured), "dpviz-soft") if self.measured not in ("", self.answer) else ""
        first = "not run yet" if self.answer is None else _marked(self, self.first)
        cells = [f"<b>{html.escape(self.name)}</b> {html.escape(self.asked[0])}", first]
        cells += [_marked(self, self.second), html.escape(self.answer) + soft] if self.verdict_read else ["", ""]
        points = STEPS[self.points] if self.verdict_read else ""
        return "<tr>" + "".join(f"<td>{cell}</td>" for cell in [*cells, f"<b>{points}</b>"]) + "</tr>"


class SecondLook(w.VBox):
    """Stands below a card's evidence: the same question once more, a button, and then the verdict."""

    def __init__(self, card: Card):
        self.card, self.is_done = card, False
        self._told = w.HTML()
        room = w.Layout(width="auto", margin="0 0 0 8px")
        self.choice = w.RadioButtons(options=card.options, value=None, layout=room)
        self._button = w.Button(description="Show the verdict", layout=w.Layout(width="150px"))
        self._button.on_click(lambda _: self.finish())
        parts = [w.HTML(sheet()), self._told, self.choice, self._button]
        super().__init__(parts, layout=w.Layout(width="100%"))
        self.add_class("dpviz-panel")

    def finish(self) -> None:
        """Take what is chosen as the second guess, and show the verdict."""
        self.is_done = self.choice.disabled = True
        self._button.layout.display = "none"
        self.draw()
        self.card.board.draw()

    def draw(self) -> None:
        if self.is_done:
            card, mark = self.card, {0: "→", 0.5: "✓", 1: "✓"}[self.card.points]
            told = f"{mark} <b>{card.how}: {html.escape(card.answer)}.</b> {card.told()} <b>{STEPS[card.points]}</b>"
            self._told.value = f"<div class='dpviz-verdict'>{told}, {card.board.so_far()} so far.</div>"
            return
        first = "You made no guess before." if self.card.first is None else f"You expected: {self.card.first}."
        asked = html.escape(f"{self.card.name}. {first} Look at the evidence. What do you say now?")
        self._told.value = f"<div class='dpviz-question'>{asked}</div>"

    def __repr__(self) -> str:
        said = f" ({self.card.measured})" if self.card.measured not in ("", self.card.answer) else ""
        return f"{self.card.name}. {self.card.how}: {self.card.answer}{said}."[:LONGEST_REPR]


def _marked(card: Card, guess: str | None) -> str:
    """A guess as the board shows it; right or not only when the verdict has been read."""
    if guess is None:
        return span("no guess", "dpviz-soft")
    mark = ("✓ " if guess == card.answer else "→ ") if card.verdict_read else ""
    return mark + html.escape(guess)


def _check_text(name: str, of: str) -> None:
    if not isinstance(name, str):
        raise WrongValue(f"the name of {of} is {name!r}, but it must be a text. Write it in quotes.")


def _cards(count: int) -> str:
    return f"{count} card{'s' * (count != 1)}"


def number(points: float) -> str:
    """Points in halves as a reader writes them: 2.5 is '2½', 0.5 is '½'."""
    whole, half = divmod(round(2 * points), 2)
    return (str(whole) if whole or not half else "") + "½" * half
