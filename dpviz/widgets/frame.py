"""What a panel and a calculator share: controls over a figure, a sentence between them, and words below."""

from __future__ import annotations

import contextlib
import html
from collections.abc import Iterator

import ipywidgets as w

from dpviz.figures.verdict import Verdict
from dpviz.widgets.controls import shown
from dpviz.widgets.live_figure import LiveFigure, Presence
from dpviz.widgets.looks import LONGEST_REPR, sheet, span
from dpviz.widgets.prints import prints_of_this_thread

ROW = {"flex_flow": "row wrap", "align_items": "center"}


class Frame(w.VBox):
    """`.controls` are the widgets by name, `.figure` the LiveFigure. What the controls do is for those who inherit.

    figure   a module of dpviz.figures, or any object with make() -> plotly Figure and draw(figure, thing) -> Verdict
    first    widgets before the controls, and `note`, a few words after them
    buttons  what stands before the status, and what after it

    Raises ValueError for a figure that cannot draw.
    """

    def __init__(
        self, controls: dict[str, w.Widget], figure, *, first: tuple = (), note: str = "", buttons: tuple = ((), ())
    ):
        if not (hasattr(figure, "make") and hasattr(figure, "draw")):
            raise ValueError(
                f"figure is {figure!r}, but it must have make and draw, as the modules of dpviz.figures do."
            )
        self.controls, self._draw = controls, figure.draw
        self._defaults = {name: control.value for name, control in controls.items()}
        self._facts, self._facts_of = "not run", {}
        self.figure = LiveFigure(figure.make())
        self._status, self._progress, self._verdict, self._foot, self._messages = (w.HTML() for _ in range(5))
        self._status.add_class("dpviz-status")
        self._messages.add_class("dpviz-messages")
        self._progress.layout = w.Layout(flex="1 1 auto")
        before, after = buttons
        said = (self._status, self._progress, self._verdict, self._foot, self._messages)
        self._spoken = (*first, *controls.values(), *said, *before)
        presence = Presence(layout=w.Layout(width="100%", height="0", margin="0"))
        presence.on_msg(lambda *_: self._resend())
        words = w.HTML(span(html.escape(note), "dpviz-soft"))
        shelf = w.HBox([*first, *controls.values(), words], layout=w.Layout(**ROW))
        shelf.add_class("dpviz-controls")
        bar = w.HBox([*before, self._status, self._progress, w.HBox([*after])], layout=w.Layout(**ROW))
        card = w.Box([self.figure], layout=w.Layout(display="block", width="100%"))
        card.add_class("dpviz-card")
        parts = [w.HTML(sheet()), shelf, bar, self._verdict, card, self._foot, self._messages, presence]
        super().__init__(parts, layout=w.Layout(width="100%", max_width="1000px"))
        self.add_class("dpviz-panel")

    def __repr__(self) -> str:
        settings = shown(self._facts_of, defaults=self._defaults)
        text = f"{settings}: {self._facts}" if settings else self._facts
        return text if len(text) <= LONGEST_REPR else text[: LONGEST_REPR - 1] + "…"

    def _values(self) -> dict:
        """What the controls hold, a slider's number without the tail that its logarithm leaves."""
        held = {name: control.value for name, control in self.controls.items()}
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in held.items()}

    def _say(self, css: str, mark: str, values: dict, more: str = "") -> None:
        settings = html.escape(shown(values, defaults=self._defaults))
        self._status.value = f"{span(mark, f'dpviz-mark dpviz-mark-{css}')} {settings}{more}"

    def _picture(self, thing, lines: list[str]) -> Verdict:
        """Draw `thing` and return the verdict; what the drawing prints is added to `lines`."""
        with self._prints_into(lines), self.figure.changing() as figure:
            return self._draw(figure, thing)

    @staticmethod
    @contextlib.contextmanager
    def _prints_into(lines: list[str]) -> Iterator[None]:
        with prints_of_this_thread() as said:
            try:
                yield
            finally:
                lines.extend(said.getvalue().splitlines())

    def _conclude_with(self, verdict: Verdict, values: dict, *foot: str) -> None:
        """Show the sentence, and in the foot, a paragraph each, the conditions it holds under."""
        good = {True: "dpviz-yes", False: "dpviz-no", None: ""}[verdict.good]
        self._facts, self._facts_of = verdict.text, values
        self._verdict.value = f"<div class='dpviz-verdict {good}'>{verdict.html}</div>"
        paragraphs = (f"<div class='dpviz-foot dpviz-soft'>{html.escape(one)}</div>" for one in foot)
        self._foot.value = "".join(paragraphs)

    def _show(self, text: str) -> None:
        if text != self._messages.value:
            self._messages.value = text

    def _resend(self) -> None:
        """A page shows it, perhaps after a reload: what was sent while the page was loading never arrived."""
        for widget in self._spoken:
            widget.send_state()
        self.figure.resend()
