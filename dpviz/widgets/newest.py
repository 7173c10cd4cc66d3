"""Runs only the newest request. No widgets here: what a request is, and what to do with its end, is the panel's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_S = 0.4  # a run may go on so long after a newer request came; ending ranks and forking new ones costs as much
STOPPING_S = 0.12  # how long the end of a run is waited for


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a request ended. how: "done" (its job has a result or an error), "stopped" or "superseded" by a newer one."""

    wish: dict
    job: object | None
    how: str
    seconds: float
    newer: bool
    error: BaseException | None = None  # `begin` itself failed: there is no job


class NewestOnly:
    """One worker thread, alive only while there is work; a request made meanwhile replaces the one that waits.

    begin(wish) -> job with done(), stop() and add_done_callback(function); called on the worker
    finish(ended)   called on the worker, the one place that may draw
    slow()          called once a run has lasted PATIENCE_S
    """

    def __init__(self, begin: Callable, finish: Callable[[Ended], None], *, slow: Callable[[], None] = lambda: None):
        self.begin, self.finish, self.slow = begin, finish, slow
        self.asked = self.begun = 0
        self._changed = threading.Condition()
        self._wish: dict | None = None
        self._busy = self._stop = False

    def request(self, wish: dict) -> None:
        """Run `wish` next, instead of any other that waits. Returns at once; any thread may call it."""
        with self._changed:
            self.asked += 1
            self._wish = wish
            if not self._busy:
                self._busy, self._stop = True, False
                threading.Thread(target=self._work, name="dpviz-panel", daemon=True).start()
            self._changed.notify_all()

    def stop(self) -> None:
        """End the run that is going on and forget the one that waits. Returns at once; any thread may call it."""
        with self._changed:
            self._stop, self._wish = self._busy, None
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when nothing runs and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)

    @property
    def waiting(self) -> bool:
        """Whether a newer request waits."""
        return self._wish is not None

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._wish is None:
                    self._busy = False
                    self._changed.notify_all()
                    return
                wish, self._wish, self._stop = self._wish, None, False
            try:
                self.finish(self._follow(wish))
            except BaseException:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
                raise

    def _follow(self, wish: dict) -> Ended:
        started = time.perf_counter()
        self.begun += 1
        try:
            job = self.begin(wish)
        except Exception as error:
            return Ended(wish=wish, job=None, how="done", seconds=0.0, newer=self.waiting, error=error)
        job.add_done_callback(lambda *_: self._wake())
        said_slow = False
        with self._changed:
            while not job.done() and not self._stop:
                lasted = time.perf_counter() - started
                if lasted >= PATIENCE_S:
                    if self.waiting:
                        break
                    if not said_slow:
                        said_slow = True
                        self.slow()
                self._changed.wait(None if lasted >= PATIENCE_S else PATIENCE_S - lasted)
            how = "done" if job.done() else "stopped" if self._stop else "superseded"
        if how != "done":
            ending = threading.Thread(target=job.stop, name="dpviz-stop", daemon=True)
            ending.start()
            ending.join(STOPPING_S)  # not for ever: a job that waits behind another panel's run ends after that
        seconds = time.perf_counter() - started
        return Ended(wish=wish, job=job, how=how, seconds=seconds, newer=self.waiting)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
