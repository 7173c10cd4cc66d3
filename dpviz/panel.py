"""A panel: controls -> config -> real ranks -> one figure and one sentence. It computes nothing.

Threads: a control's callback (JupyterLab runs it beside the cells, where an interrupt does not reach) only notes what
is wanted and says "running"; one worker, alive while there is work, waits for the ranks and alone touches the figure.
"""

from __future__ import annotations

import html
import threading
import time
from collections.abc import Callable

import ipywidgets as w

from dpviz.questions.base import Question
from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import start
from dpviz.ranks.link import Link
from dpviz.records import Run, Step
from dpviz.widgets import messages
from dpviz.widgets.controls import changed, link_of, make_controls, shown, why_disabled
from dpviz.widgets.frame import Frame
from dpviz.widgets.looks import span
from dpviz.widgets.newest import Ended, NewestOnly
from dpviz.widgets.saving import save_beside

BETWEEN_PICTURES_S = 0.3  # while newer requests keep coming
BETWEEN_WORDS_S = 0.1  # progress and prints that reach the browser


def panel(
    experiment: Callable,
    config,
    *,
    figure,
    controls,
    world_size: int = 4,
    link: Link | None = None,
    timeout: float = 10,
    progress: Callable | None = None,
) -> Panel:
    """Return a widget that launches `experiment` whenever a control is released, and draws the newest run.

    experiment  the function to launch, usually the one defined in the cell above
    config      the Config to begin with, or None for an experiment that heeds none
    figure      a module of dpviz.figures, or any object with make() -> plotly Figure and draw(figure, run) -> Verdict
    controls    names of the fields to control, "world_size", "link_gbps" and "link_latency_us" among them; or a dict
                from name to a range (low, high), a tuple of options, or None: {"world_size": (1, 8), "average": None}
    link        the dpviz.Link to begin with; where the machine can make none, its controls are disabled and say why
    timeout     seconds, as of dpviz.launch
    progress    turns a record of rank 0 into the text shown during a long run; by default its step and loss

    The first run is done before this returns, so that the cell's output holds its verdict. An interrupt ends that run
    only. The run that is drawn is `.run`; `.stop()` ends the one that is going on.
    Raises ValueError for a wrong name or range.
    """
    return Panel(
        experiment,
        config,
        figure=figure,
        controls=controls,
        world_size=world_size,
        link=link,
        timeout=timeout,
        progress=progress,
    )


class Panel(Frame):
    """See `panel`. `.run` is the run that is drawn (None before the first), `.controls` the widgets by name."""

    def __init__(self, experiment, config, *, figure, controls, world_size=4, link=None, timeout=10, progress=None):
        self._experiment, self._config, self._link, self._timeout = experiment, config, link, timeout
        self._world_size, self._tell = world_size, progress or self._step_and_loss
        self.run: Run | None = None
        self.seconds: list[float] = []  # of each run that was drawn, from begin to result
        self._drawn_at = 0.0
        self._saying = threading.RLock()  # what is said about a run and what is wanted change together
        self._lines: list[str] = []
        self._spoke_at = 0.0
        self._newest = NewestOnly(self._begin, self._finish, slow=self._slow)
        made = make_controls(config, controls, world_size=world_size, link=link)
        super().__init__(made, figure, note=why_disabled(made), buttons=self._buttons())
        for control in self.controls.values():
            control.observe(lambda _: self._request(), "value")
        self._request()
        try:
            self._newest.wait()
        except KeyboardInterrupt:  # the panel is still of use: its controls start the next run
            self.stop()
            self._newest.wait()

    def _buttons(self) -> tuple[list[w.Widget], list[w.Widget]]:
        """Stop, before the status, and what saves, after it."""
        self._stop_button = w.Button(
            description="Stop",
            icon="stop",
            disabled=True,
            tooltip="End this run's ranks now",
            layout=w.Layout(width="84px"),
        )
        self._stop_button.on_click(lambda _: self.stop())
        self._save_buttons = {
            kind: w.Button(
                description=kind.upper(),
                icon="download",
                tooltip=f"Save {what}, beside the notebook",
                layout=w.Layout(width="76px"),
            )
            for kind, what in (("csv", "the records as a table"), ("json", "the whole run, for dpviz.Run.load"))
        }
        for kind, button in self._save_buttons.items():
            button.on_click(lambda _, kind=kind: self._save(kind))
        return [self._stop_button], [*self._save_buttons.values()]

    # -- on any thread

    def stop(self) -> None:
        """End the run that is going on, and forget the one that waits. The next move of a control starts another."""
        self._newest.stop()

    def _request(self) -> None:
        values = self._values()
        with self._saying:
            self._newest.request(values)
            self._say("busy", "● running", values, " …")

    def _resend(self) -> None:
        with self._saying:
            super()._resend()

    def _save(self, kind: str) -> None:
        try:
            if self.run is None:
                raise ValueError("there is nothing to save yet, since no run has succeeded.")
            path = save_beside(self.run, kind, settings=shown(self._facts_of, defaults=self._defaults))
            self._progress.value = span(html.escape(f"saved {path.name} in {path.parent}"), "dpviz-soft")
        except Exception as error:
            self._messages.value = messages.explained(error)

    # -- on the pool's thread

    def _on_record(self, rank: int, record) -> None:
        now = time.perf_counter()
        if rank == 0 and now - self._spoke_at > BETWEEN_WORDS_S:
            self._spoke_at = now
            self._progress.value = span(html.escape(self._tell(record)), "dpviz-soft")

    def _on_print(self, rank: int, line: str, lines: list[str]) -> None:
        lines.append(f"rank {rank}: {line}")
        now = time.perf_counter()
        if lines is self._lines and now - self._spoke_at > BETWEEN_WORDS_S:
            self._spoke_at = now
            self._messages.value = messages.printed(lines)

    def _step_and_loss(self, record) -> str:
        if not isinstance(record, Step):
            return str(record)
        steps = getattr(self._config, "steps", None)
        of = f" of {self.controls['steps'].value if 'steps' in self.controls else steps}" if steps else ""
        return f"step {record.step + 1}{of}" + (f", loss {record.loss:.3g}" if record.loss is not None else "")

    # -- on the worker

    def _begin(self, values: dict):
        config = changed(self._config, values)
        implied = config.implied_world_size() if isinstance(config, Question) else None
        lines = self._lines = []
        self._spoke_at = time.perf_counter()  # a short run says nothing on its way
        return start(
            self._experiment,
            config,
            world_size=values.get("world_size", implied or self._world_size),
            link=link_of(values, self._link),
            timeout=self._timeout,
            on_record=self._on_record,
            on_print=lambda rank, line: self._on_print(rank, line, lines),
        )

    def _slow(self) -> None:
        self._stop_button.disabled = False

    def _finish(self, ended: Ended) -> None:
        self._stop_button.disabled = True
        self._progress.value = ""
        try:
            self._conclude(ended)
        except Exception as error:  # of a rank, of the Config or of the figure: nothing else would show it
            self._fail(ended, error)

    def _conclude(self, ended: Ended) -> None:
        if ended.how == "stopped":
            self._say_unless_newer("no", "■ stopped", ended.wish, span(f" after {ended.seconds:.1f} s", "dpviz-soft"))
            self._facts = "stopped" if self.run is None else self._facts
            return
        if ended.how == "superseded" or (ended.newer and time.perf_counter() - self._drawn_at < BETWEEN_PICTURES_S):
            return
        if ended.error:
            raise ended.error
        run = ended.job.result()
        verdict = self._picture(run, self._lines)
        self.run, self._drawn_at = run, time.perf_counter()
        self._conclude_with(verdict, ended.wish, f"{run.environment.line()}; bytes {run.environment.wire}")
        self._show(messages.printed(self._lines))
        self.seconds.append(ended.seconds)
        self._say_unless_newer("yes", "✓", ended.wish, span(f" {ended.seconds:.2f} s", "dpviz-soft"))

    def _fail(self, ended: Ended, error: BaseException) -> None:
        self._facts, self._facts_of = getattr(error, "kind", "") or type(error).__name__, ended.wish
        self._show(messages.explained(error) + messages.printed(self._lines))
        if self.run is not None:
            failed_before = isinstance(error, RankError | ValueError)
            of = "the last run that succeeded" if failed_before else "no run: it could not be drawn"
            self._verdict.value = f"<div class='dpviz-verdict dpviz-soft'>The figure is that of {of}.</div>"
        self._say_unless_newer("no", "✗ failed", ended.wish)

    def _say_unless_newer(self, *words) -> None:
        with self._saying:
            if not self._newest.waiting:
                self._say(*words)
