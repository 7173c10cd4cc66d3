"""One thread owns the rank pool; anybody may hand it a Job, wait for it, or stop it.

Callers are the main thread (dp.launch in a cell) and the worker threads of panels. None of them talks to the ranks,
so that an interrupt cannot cut a message in two, and a Job is stopped by its own token, so that one panel cannot stop
another's run.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dpviz.questions.base import WrongValue
from dpviz.ranks import sources, travel
from dpviz.ranks.errors import RankError, Stopped
from dpviz.ranks.link import Link, check
from dpviz.ranks.ongoing import Outcome
from dpviz.ranks.pool import STOP, RankPool

STOP_S = 0.2  # how long a stopped job may take to notice before its ranks are killed from outside


class Job:
    """A launch that has been asked for."""

    def __init__(
        self,
        payload: bytes,
        *,
        finish: Callable[[Outcome], Any],
        fail: Callable[[RankError], Any] | None = None,
        **options: Any,
    ):
        self._payload, self._finish, self._fail, self._options = payload, finish, fail, options
        self._future: Future = Future()
        self._beginning = threading.Lock()
        self._begun = False
        self._wake, self._alarm = socket.socketpair(type=socket.SOCK_DGRAM)  # each message whole: STOP, or a Link
        self.links = [options["link"]] if options.get("link") else []  # the one it began on, those it was changed to

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the Run. Raises RankError, Stopped, or TimeoutError after `timeout` seconds."""
        return self._future.result(timeout)

    def add_done_callback(self, function: Callable[[Job], None]) -> None:
        """Call function(job) when it has ended, from the pool's thread; at once if it has."""
        self._future.add_done_callback(lambda _: function(self))

    def stop(self) -> None:
        """End this job and its ranks, and return when that is done; nothing happens where it has ended already."""
        # On a thread of its own, since Ctrl-C is often pressed twice, and the second must not cut this short
        ending = threading.Thread(target=self.stop_here, name="dpviz-stop", daemon=True)
        ending.start()
        ending.join()

    def stop_here(self) -> None:
        """Stop it on this thread: a Python that is ending starts no other."""
        with self._beginning:
            if not self._begun:
                self._end(error=Stopped("the launch was stopped before it began"))
                return
        with contextlib.suppress(OSError):
            self._alarm.send(STOP)
        while True:
            try:
                self._future.exception(STOP_S)
                return
            except TimeoutError:  # in the middle of a long message, perhaps: its ranks' end will end it
                for pid in _owner.pool.pids() if _owner.job is self else ():
                    sources.end(pid)

    def change_link(self, link: Link) -> None:
        """Change the rate of the network under the running ranks, at once; they are not asked. Nothing happens where
        the job has ended. Raises ValueError where it was launched without a link.
        """
        link = check(link)
        if not self.links or link is None:
            raise WrongValue("this run has no link to change: launch it with link=dpviz.Link(gbps=1.0).")
        with self._beginning:
            self._options["link"] = link
            self.links[:] = [*self.links, link] if self._begun else [link]
            if self._begun:
                with contextlib.suppress(OSError):
                    self._alarm.send(travel.dumps(link))

    def run(self, pool: RankPool) -> None:
        """Run on the pool's own thread."""
        with self._beginning:
            if self._future.done():  # stopped while it waited for its turn
                return
            self._begun = True
        try:
            self._end(result=self._run(pool))
        except BaseException as error:
            self._end(error=error)

    def _end(self, *, result: Any = None, error: BaseException | None = None) -> None:
        self._wake.close()
        self._alarm.close()
        if self._future.done():
            return
        if error is None:
            self._future.set_result(result)
        else:
            self._future.set_exception(error)

    def _run(self, pool: RankPool) -> Any:
        try:
            return self._finish(pool.run(self._payload, wake=self._wake, **self._options))
        except RankError as error:
            if self._fail is None:
                raise
            return self._fail(error)


class Owner:
    """The thread, its pool, and the queue of what it is to do with the pool: a Job, or a function of the pool."""

    def __init__(self) -> None:
        self.pool = RankPool()
        self.tasks: queue.SimpleQueue = queue.SimpleQueue()
        self.job: Job | None = None
        self.thread: threading.Thread | None = None
        self.starting = threading.Lock()

    def submit(self, task: Job | Callable[[RankPool], None]) -> None:
        self.tasks.put(task)
        with self.starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self.work, name="dpviz-pool", daemon=True)
                self.thread.start()

    def work(self) -> None:
        while True:
            task = self.tasks.get()
            if isinstance(task, Job):
                self.job = task
                task.run(self.pool)
                self.job = None
            else:
                with contextlib.suppress(Exception):  # this thread must live; the launch that comes next says why
                    task(self.pool)


_owner = Owner()


def submit(job: Job) -> None:
    _owner.submit(job)


def warm() -> None:
    """Start the rank server in the background, so that the first launch waits less."""
    _owner.submit(RankPool.open)


@atexit.register
def close() -> None:
    """End the running job, the ranks and the server; a later launch starts them anew."""
    if _owner.thread is None:
        return
    if job := _owner.job:
        job.stop_here()
    closed = threading.Event()
    _owner.submit(lambda pool: (pool.close(), closed.set()))
    closed.wait(STOP_S * 50)  # at worst the server sees our end, and ends by itself


def _forget_in_child() -> None:
    """After a fork of this process by somebody else: the pool belongs to the parent, whose end its server must be
    able to see.
    """
    global _owner
    if _owner.pool.source is not None and _owner.pool.source.selectable:
        _owner.pool.source.selectable.close()
    _owner = Owner()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
