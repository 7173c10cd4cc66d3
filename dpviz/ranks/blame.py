"""Whose fault was it? From what the ranks said when a launch ended badly to one RankError.

In this order: a rank whose process ended; a rank that raised something of its own (gloo's "connection closed" and
"timed out" are what the others suffer); a rank that does not answer; a rank that has issued fewer collectives than
the others; ranks whose last collective differs from that of the majority.
"""

from __future__ import annotations

import collections
import re
import signal
from dataclasses import dataclass, field
from typing import Any

from dpviz.contract.compare import SAME_EVERYWHERE, minority
from dpviz.ranks import travel
from dpviz.ranks.errors import RankError

_CONSEQUENCE = re.compile(
    r"Connection closed by peer|Timed out waiting|Connection reset|Broken pipe|Application timeout|Connection refused"
)
_MESSAGES = ("send", "recv", "isend", "irecv", "batch_isend_irecv")  # from one rank to another


@dataclass
class Account:
    """What is known of one rank at the end: where it is, what it raised, whether it returned, how its process ended."""

    place: dict | None = None  # see rank.where
    returned: bool = False
    kind: str = ""
    message: str = ""
    frames: list = field(default_factory=list)
    ended: bool = False
    code: int | None = None
    asleep: bool = False  # it was asked where it is, and did not answer

    @property
    def suffered(self) -> bool:
        """Whether its error is only the consequence of another rank's."""
        return self.kind in ("RuntimeError", "DistBackendError", "DistNetworkError") and bool(
            _CONSEQUENCE.search(self.message)
        )

    @property
    def raised(self) -> bool:
        return bool(self.kind) and not self.suffered

    @property
    def issued(self) -> int | None:
        return self.place and self.place["issued"]

    @property
    def last(self) -> Any:
        return self.place and self.place["last"]

    @property
    def awaits(self) -> str:
        """The function in which it waits for another rank's message, "" where it waits in a collective."""
        waits_in = self.place and self.place["waits_in"]
        return waits_in if waits_in in _MESSAGES else ""

    def how_it_ended(self) -> str:
        if self.code is None:
            return "ended"
        return (
            f"was ended by {_signal(-self.code)}"
            if self.code < 0
            else f"exited with status {self.code} before it returned"
        )

    def line(self) -> str:
        there = travel.place(self.place["line"]) if self.place and self.place["line"] else ""
        at = travel.users_place(self.frames) if self.kind else there
        at = f"; {at}" if at else ""
        if self.ended:
            return f"its process {self.how_it_ended()}"
        if self.returned:
            return f"returned, after {_count(self.issued)}"
        if self.raised:
            return f"raised {self.kind}{at}"
        if self.awaits and not self.asleep:
            return f"waited in {self.awaits} for another rank, after {_count(self.issued)}{at}"
        if self.suffered and self.last is None:
            return f"waited for a message of another rank{at}"
        if self.suffered:
            return f"lost the others in {self.last} (collective {self.issued}){at}"
        if self.asleep:
            return "did not answer: it is stopped, or holds Python's lock"
        if self.place and self.place["waits_in"]:
            return f"waited in {self.place['waits_in']} (collective {self.issued}: {self.last}){at}"
        return f"had issued {_count(self.issued)}{at}"


def explain(accounts: list[Account], *, silent_s: float | None = None) -> RankError:
    """Return the error that names the ranks at fault; `silent_s` is set where the launch ended because nothing was
    heard for so long.
    """
    guilty, why = _guilty(accounts, silent_s)
    one = accounts[guilty[0]]
    report = "\n".join(f"rank {rank} {account.line()}" for rank, account in enumerate(accounts))
    error = dict(kind=one.kind, message=one.message, frames=one.frames) if one.raised else {}
    trace = travel.traceback_text(one.kind, one.message, one.frames) if one.raised else ""
    return RankError(why, ranks=guilty, report=report, traceback=trace, **error)


def mismatch(issued: list[list]) -> RankError | None:
    """Compare what each rank issued in a launch that returned: gloo lets some mismatched shapes through, with wrong
    numbers.
    """
    calls: dict[tuple, dict[int, Any]] = collections.defaultdict(dict)
    for rank, entries in enumerate(issued):
        for entry in entries:
            calls[entry.group, entry.number][rank] = entry
    for (_, number), of_rank in calls.items():
        different = minority(
            {rank: (c.name, c.shapes, c.dtypes) for rank, c in of_rank.items() if c.name in SAME_EVERYWHERE}
        )
        if different:
            accounts = [
                Account(
                    returned=True, place={"issued": number, "last": of_rank.get(rank), "line": None, "waits_in": None}
                )
                for rank in range(len(issued))
            ]
            return RankError(
                _different(accounts, different),
                ranks=different,
                report="\n".join(f"rank {r} called {c}" for r, c in of_rank.items()),
            )
    return None


def _guilty(accounts: list[Account], silent_s: float | None) -> tuple[list[int], str]:
    def where(test) -> list[int]:
        return [rank for rank, account in enumerate(accounts) if test(account)]

    if ended := where(lambda a: a.ended):
        killed = accounts[ended[0]].code == -signal.SIGKILL  # Linux tells the process itself no reason
        hint = ", as the system does when memory runs out" if killed else ""
        return ended, f"the process of {ranks(ended)} {accounts[ended[0]].how_it_ended()}{hint}"
    if raised := where(lambda a: a.raised):
        return raised, f"{ranks(raised)} raised {accounts[raised[0]].kind}: {accounts[raised[0]].message}"
    if asleep := where(lambda a: a.asleep):
        return asleep, f"{ranks(asleep)} did not answer: stopped, or holding Python's lock"
    if silent_s is not None:  # no collective has timed out, so the ranks compute, or go on for ever
        busy = where(lambda a: not a.returned)
        said = f"{ranks(busy)} had neither returned nor said anything for {silent_s:g} s"
        return busy, f"{said}; a larger timeout= would wait longer"
    counts = [account.issued or 0 for account in accounts]
    busy = where(lambda a: not a.suffered and not a.returned and not (a.place and a.place["waits_in"]))
    if busy and max(counts) == min(counts) and where(lambda a: a.suffered):  # the others wait for its messages
        waited = where(lambda a: a.suffered)
        return busy, f"{ranks(busy)} did something else, while {ranks(waited)} waited too long for {them(busy)}"
    if behind := [rank for rank, count in enumerate(counts) if count < max(counts)]:
        waited = [rank for rank, count in enumerate(counts) if count == max(counts)]
        return (
            behind,
            f"{ranks(behind)} did not come to collective {max(counts)} ({accounts[waited[0]].last}), "
            f"in which {ranks(waited)} waited",
        )
    lasts = {rank: str(account.last) for rank, account in enumerate(accounts) if account.last}
    if len(lasts) == len(accounts) and (different := minority(lasts)):  # else it was one in a group of some ranks
        return different, _different(accounts, different)
    waiting = where(lambda a: not a.returned) or list(range(len(accounts)))
    if message := next((account.awaits for account in accounts if account.awaits), ""):
        for_what = "a message that never came" if len(waiting) == 1 else "each other's messages"
        return waiting, f"{ranks(waiting)} waited too long in {message}, for {for_what}"
    if not lasts:
        return waiting, f"{ranks(waiting)} waited too long for a message of another rank"
    longer = "a larger timeout= would wait longer"
    return waiting, f"{ranks(waiting)} waited too long in {next(iter(lasts.values()))}; {longer}"


def _different(accounts: list[Account], different: list[int]) -> str:
    called = "; ".join(f"rank {rank} called {accounts[rank].last}" for rank in different[:4])
    others = [rank for rank in range(len(accounts)) if rank not in different]
    rest = f", where {ranks(others)} called {accounts[others[0]].last}" if others else ""
    return f"the ranks do not agree in collective {accounts[different[0]].issued}: {called}{rest}"


def ranks(some: list[int]) -> str:
    """Return 'rank 1', or 'ranks 0, 2 and 3'."""
    if len(some) == 1:
        return f"rank {some[0]}"
    return f"ranks {', '.join(map(str, some[:-1]))} and {some[-1]}"


def them(some: list[int]) -> str:
    return "it" if len(some) == 1 else "them"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal has no name
        return f"signal {number}"


def _count(issued: int | None) -> str:
    return "no collective" if not issued else f"{issued} collective{'s' * (issued > 1)}"
