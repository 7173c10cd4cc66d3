"""The state of one launch while it runs: what each rank has sent so far, and whether it is time to give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpviz.measure import counted
from dpviz.ranks import blame, travel
from dpviz.ranks.errors import RankError
from dpviz.records import Collective, Wire

GRACE_S = 0.15  # after the first bad news, for that of the others
MAX_LINES, MAX_LINE = 1000, 2000  # printed lines a rank, characters a line


@dataclass
class Outcome:
    """What a launch brought back, one entry a rank."""

    results: list[Any]
    wire: list[Wire]
    collectives: list[list[Collective]]


class Ongoing:
    """Takes in the messages of ranks 0 to world_size - 1, pickled as they come; see rank.py for what each holds."""

    def __init__(self, world_size: int, on_record: Callable[[int, Any], None], on_print: Callable[[int, str], None]):
        self.world_size, self.on_record, self.on_print = world_size, on_record, on_print
        self.accounts = [blame.Account() for _ in range(world_size)]
        self.results: dict[int, Any] = {}
        self.collectives: dict[int, list[Collective]] = {}
        self.wire: dict[int, Wire] = {}
        self.joined = 0
        self.refused = ""  # why a link that it asked for could not be made
        self.threads_left = False  # whether an experiment left a thread of its own behind
        self.heard = time.monotonic()  # when anything was last heard
        self.give_up: float | None = None  # set by the first bad news
        self._unfinished = [b""] * world_size
        self._lines = [0] * world_size

    def take(self, rank: int, data: bytes) -> None:
        self.heard = time.monotonic()
        try:
            kind, *content = travel.loads(data)
        except Exception as error:  # reading runs the code of whatever was sent, which may raise anything
            said = f"what rank {rank} sent back cannot be read here: {type(error).__name__}: {travel.words(error)}"
            raise RankError(f"{said}. Give numbers, strings, lists, dicts, arrays or tensors.", ranks=[rank]) from None
        getattr(self, f"_{kind}")(rank, *content)

    def printed(self, rank: int, data: bytes) -> None:
        self.heard = time.monotonic()
        *lines, rest = data.replace(b"\r", b"\n").split(b"\n")  # progress bars end their lines by a return
        for line in lines:
            self._show(rank, self._unfinished[rank] + line)
            self._unfinished[rank] = b""
        self._unfinished[rank] = (self._unfinished[rank] + rest)[: MAX_LINE + 1]

    def ended(self, rank: int, code: int | None = None) -> None:
        """The rank's process has ended; `code` is its exit status, where that is known already."""
        account = self.accounts[rank]
        account.code = account.code if code is None else code
        if account.ended:
            return
        self._end_of_prints(rank)
        account.ended = True
        self._bad_news()

    def end_of_prints(self) -> None:
        """Show what was printed without an end of line."""
        for rank in range(self.world_size):
            self._end_of_prints(rank)

    def outcome(self) -> Outcome:
        return Outcome(
            *(
                [of_rank[rank] for rank in range(self.world_size)]
                for of_rank in (self.results, self.wire, self.collectives)
            )
        )

    def count_bytes(self) -> None:
        """Fill in the bytes where the kernel does not tell them."""
        self.wire = {rank: counted.wire(issued, rank, self.world_size) for rank, issued in self.collectives.items()}

    # -- one method a kind of message

    def _joined(self, rank: int) -> None:
        self.joined += 1

    def _record(self, rank: int, record: Any) -> None:
        self.on_record(rank, record)

    def _result(self, rank: int, result: Any, issued: list[Collective], place: dict) -> None:
        self._end_of_prints(rank)
        self.results[rank], self.collectives[rank] = result, issued
        self.accounts[rank].returned, self.accounts[rank].place = True, place
        self.threads_left |= place["threads"] > 0

    def _error(self, rank: int, kind: str, message: str, frames: list, place: dict) -> None:
        self._end_of_prints(rank)
        account = self.accounts[rank]
        account.kind, account.message, account.frames, account.place = kind, message, frames, place
        self._bad_news()

    def _where(self, rank: int, place: dict) -> None:
        self.accounts[rank].place = self.accounts[rank].place or place

    def _wire(self, rank: int, sent: int, received: int) -> None:
        self.wire[rank] = Wire(sent=sent, received=received)

    def _bad_news(self) -> None:
        if self.give_up is None:
            self.give_up = time.monotonic() + GRACE_S

    def _show(self, rank: int, line: bytes) -> None:
        self._lines[rank] += 1
        if self._lines[rank] <= MAX_LINES:
            text = line.decode(errors="replace")
            self.on_print(rank, text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]} … (cut)")

    def _end_of_prints(self, rank: int) -> None:
        if self._unfinished[rank]:
            self._show(rank, self._unfinished[rank])
            self._unfinished[rank] = b""
        if self._lines[rank] > MAX_LINES:
            self.on_print(rank, f"… {self._lines[rank] - MAX_LINES} more lines not shown")
