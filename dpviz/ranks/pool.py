"""The launching side of the warm pool: ranks are kept between launches, a launch that ends badly leaves none behind.

Only one thread ever uses a RankPool (see jobs.py). Every wait is on one selector that also holds the job's wake-up
descriptor, so that a stop takes effect wherever the launch is, also while the server is still starting.
"""

from __future__ import annotations

import collections
import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from dpviz.measure import wire
from dpviz.ranks import blame, sources, travel
from dpviz.ranks.errors import RankError, Stopped
from dpviz.ranks.ongoing import Ongoing, Outcome
from dpviz.records import COUNTED

START_S = 120  # for the server's imports and the first meeting of new ranks, on a slow and busy machine
MEET_S = 15  # for warm ranks to leave one group and meet in another
ANSWER_S = 0.3  # for "where are you"
STOP = b"stop"  # what the job's descriptor says to end it; anything else is a Link to change to


class RankPool:
    def __init__(self) -> None:
        self.source: Any = None
        self.handles: list[sources.Handle] = []
        self.begun: collections.deque[sources.Handle] = collections.deque()  # their pids come in the order asked for
        self.group: tuple[int, bool] | None = None  # the world size that the ranks have joined, and whether on links
        self.groups = 0
        self.unshaped = 0  # links that the server has been asked for and has not answered about
        self.known: dict[str, float] = {}
        self.launch: Ongoing | None = None
        self.selector = selectors.DefaultSelector()

    def open(self) -> None:
        """Start the server if there is none; it imports torch while the caller goes on."""
        if self.source is not None and not self.source.usable():
            self.close()
        if self.source is None:
            self.source = sources.make()
            if self.source.selectable:
                self.selector.register(self.source.selectable, selectors.EVENT_READ)

    def run(
        self, payload: bytes, *, world_size: int, timeout: float, link, on_record, on_print, wake: socket.socket
    ) -> Outcome:
        """Run the packed experiment on ranks 0 to world_size - 1. Raises RankError, or Stopped once `wake` says so."""
        directory = travel.directory()
        if travel.edited(self.known) or self._an_idle_rank_ended():
            self.kill()
        self.open()
        self.launch = Ongoing(world_size, on_record, on_print)
        self.selector.register(wake, selectors.EVENT_READ)
        try:
            if link:
                self._shape(link)
                self._shaped()
            self._meet(world_size, timeout, on_link=bool(link))
            self._send_all(("call", payload, timeout, sys.path, directory))
            self._collect(timeout)
            self._shaped()
            outcome = self._finish()
            if self.launch.threads_left:
                self.kill()  # what they print or change would be the next launch's
            return outcome
        except BaseException:
            self.kill()  # no rank outlives a launch that did not end well: nobody knows what it is in the middle of
            raise
        finally:
            self.selector.unregister(wake)
            self.launch = None

    def kill(self) -> None:
        """End every rank, now. The server stays."""
        with contextlib.suppress(EOFError):
            self._hear_source()  # else the pid of a rank just forked would be unknown
        for handle in self.handles:
            if handle.pid is not None:
                sources.end(handle.pid)
            self._forget(handle.control)
            self._forget(handle.output)
            handle.control.close()  # a rank whose pid is not known yet ends by this
            os.close(handle.output)
        self.handles, self.group = [], None
        if self.source is not None:
            sources.forget_meetings(self.source.directory)

    def close(self) -> None:
        """End every rank and the server."""
        self.kill()
        if self.source is not None:
            if self.source.selectable:
                self._forget(self.source.selectable)
            self.source.close()
        self.source, self.unshaped = None, 0
        self.begun.clear()

    def pids(self) -> list[int]:
        return [handle.pid for handle in self.handles if handle.pid is not None]

    # -- the parts of a launch

    def _an_idle_rank_ended(self) -> bool:
        """Whether a control socket has something to read: an idle rank says nothing, so it is the end."""
        return any(key.data is not None and key.fileobj is key.data.control for key, _ in self.selector.select(0))

    def _begin(self, world_size: int) -> None:
        while len(self.handles) < world_size:
            ours, theirs = socket.socketpair()
            read, write = os.pipe()
            os.set_blocking(read, False)
            handle = sources.Handle(Connection(ours.detach()), read)
            self.handles.append(handle)
            self.begun.append(handle)
            self.selector.register(handle.control, selectors.EVENT_READ, handle)
            self.selector.register(handle.output, selectors.EVENT_READ, handle)
            try:
                with self._server():
                    self.source.start(len(self.handles) - 1, theirs.fileno(), write)
            finally:
                theirs.close()
                os.close(write)

    def _shape(self, link) -> None:
        with self._server():
            self.source.shape(self.launch.world_size, link)
        self.unshaped += 1

    def _shaped(self) -> None:
        """Wait until the server has answered for every link. Raises RankError where the kernel refused one."""
        if not self._wait_for(lambda: self.unshaped == 0, START_S):
            self.launch.refused = f"no answer within {START_S} s"
        if self.launch.refused:
            raise RankError(f"the ranks' network could not be given the link: {self.launch.refused}")

    def _meet(self, world_size: int, timeout: float, *, on_link: bool) -> None:
        warm = len(self.handles) >= world_size
        self._begin(world_size)
        wanted = (world_size, on_link)
        if self.group == wanted or self._join(*wanted, timeout, MEET_S if warm else START_S):
            return
        self.kill()  # gloo's teardown of the old group has been seen to stall: once more, with new ranks
        self._begin(world_size)
        if not self._join(*wanted, timeout, START_S):
            raise RankError(f"the ranks did not meet within {START_S} s")

    def _join(self, world_size: int, on_link: bool, timeout: float, within_s: float) -> bool:
        """Make a new process group of the ranks; returns whether they met in time."""
        self.groups, self.launch.joined = self.groups + 1, 0
        store = os.path.join(self.source.directory, str(self.groups))  # a used one would answer "connection refused"
        for rank in range(world_size):
            self._send(rank, ("join", rank, world_size, store, timeout, on_link))
        if not self._wait_for(lambda: self.launch.joined == world_size, within_s):
            return False
        sources.forget_meetings(self.source.directory, but=store)
        self._read_wire()  # what the group's making cost is not the experiment's
        self.launch.wire.clear()
        self.group = (world_size, on_link)
        return True

    def _collect(self, timeout: float) -> None:
        launch = self.launch
        launch.heard = time.monotonic()
        while len(launch.results) < launch.world_size:
            until = launch.heard + 2 * timeout if launch.give_up is None else launch.give_up
            if time.monotonic() >= until:
                raise self._explained(2 * timeout if launch.give_up is None else None)
            self._wait(until)

    def _finish(self) -> Outcome:
        error = blame.mismatch([self.launch.collectives[rank] for rank in range(self.launch.world_size)])
        if error:
            raise error
        if wire.how() == COUNTED:
            self.launch.count_bytes()
        else:
            self._read_wire()  # only now: a rank that has returned may still be sending for the others
        return self.launch.outcome()

    def _read_wire(self) -> None:
        self._send_all(("wire",))
        if not self._wait_for(lambda: len(self.launch.wire) == self.launch.world_size, START_S):
            raise RankError(f"the ranks did not say what they had sent within {START_S} s")

    def _wait_for(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Take in messages until ready() or for so many seconds; returns ready(). Raises RankError upon bad news."""
        deadline = time.monotonic() + seconds
        while not ready() and time.monotonic() < deadline:
            if self.launch.give_up is not None and time.monotonic() >= self.launch.give_up:
                raise self._explained(None)
            self._wait(deadline if self.launch.give_up is None else self.launch.give_up)
        return ready()

    def _explained(self, silent_s: float | None) -> RankError:
        launch = self.launch
        launch.end_of_prints()
        asked = [rank for rank, account in enumerate(launch.accounts) if account.place is None and not account.ended]
        for rank in asked:
            self._send(rank, ("where",))
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline and any(
            not a.ended and a.place is None or a.ended and a.code is None for a in launch.accounts
        ):
            self._wait(deadline)
        for rank in asked:
            account = launch.accounts[rank]
            account.asleep = account.place is None and not account.ended
        return blame.explain(launch.accounts, silent_s=silent_s)

    # -- messages

    def _send(self, rank: int, message: tuple) -> None:
        with contextlib.suppress(OSError):  # it has ended: its control socket says so to the next wait
            self.handles[rank].control.send_bytes(travel.dumps(message))

    def _send_all(self, message: tuple) -> None:
        data = travel.dumps(message)
        for handle in self.handles[: self.launch.world_size]:
            with contextlib.suppress(OSError):
                handle.control.send_bytes(data)

    def _wait(self, until: float) -> None:
        """Wait for something to happen, and take it in. Raises Stopped, and RankError where the server has ended."""
        for key, _ in self.selector.select(max(0.0, until - time.monotonic())):
            if key.data is None and key.fileobj is self.source.selectable:
                with self._server():
                    self._hear_source()
            elif key.data is None:
                if (wish := key.fileobj.recv(4096)) == STOP:
                    raise Stopped("the launch was stopped")
                self._shape(travel.loads(wish))
            elif key.fileobj is key.data.control:
                self._hear_rank(key.data)
            else:
                self._hear_output(key.data)
        if self.source.selectable is None:
            self._hear_source()

    def _hear_source(self) -> None:
        for message in self.source.news() if self.source else ():
            if "forked" in message:
                self.begun.popleft().pid = message["forked"]
            elif "shaped" in message:
                self.unshaped -= 1
                if self.launch:
                    self.launch.refused = self.launch.refused or message["shaped"]
            elif "ended" in message:
                for rank, handle in enumerate(self.handles):
                    if handle.pid == message["ended"] and self.launch and rank < self.launch.world_size:
                        self.launch.ended(rank, message["code"])  # a child of the rank may still hold its socket

    def _hear_rank(self, handle: sources.Handle) -> None:
        rank = self.handles.index(handle)
        try:
            data = handle.control.recv_bytes()
        except (EOFError, OSError):
            self._forget(handle.control)
            self._hear_output(handle)
            if rank < self.launch.world_size:
                self.launch.ended(rank)
            return
        self._hear_output(handle)  # what it printed before it sent this comes first
        self.launch.take(rank, data)

    def _hear_output(self, handle: sources.Handle) -> None:
        rank = self.handles.index(handle)
        while True:
            try:
                data = os.read(handle.output, 65536)
            except BlockingIOError:
                return
            if not data:
                self._forget(handle.output)
                return
            if rank < self.launch.world_size:
                self.launch.printed(rank, data)

    def _forget(self, descriptor: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(descriptor)

    @contextlib.contextmanager
    def _server(self) -> Iterator[None]:
        """Say in a RankError that the server has ended, where the source finds it so."""
        try:
            yield
        except EOFError:
            said = self.source.said()
            self.close()
            last = f": {said.splitlines()[-1]}" if said else "; the next launch starts a new one"
            raise RankError(f"the rank server ended{last}", report=said) from None
