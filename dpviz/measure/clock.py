"""One clock for all ranks, so that their timelines can be laid side by side.

Ranks of one host read the same clock, time.perf_counter (on Linux CLOCK_MONOTONIC), and need no alignment. For the
others rank 0 answers with its own reading, several times: the answer was given somewhere between question and receipt,
so half the round trip is what it may be wrong by, and the shortest round trip decides.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

SAME_HOST = "one host, one monotonic clock"
PING_PONG = "half of the shortest of {} round trips to rank 0"
ROUND_TRIPS = 20


@dataclass(frozen=True, kw_only=True)
class Offset:
    """Add `seconds` to this rank's clock to have rank 0's; wrong by at most `uncertainty_s`; `how` says how it was
    found.
    """

    seconds: float
    uncertainty_s: float
    how: str


def now() -> float:
    """Return time.perf_counter(), once torch's default device has done all that it was given; a CPU always has."""
    if torch.get_default_device().type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter()


def host_id() -> str:
    """Return what tells this host's clock from another's: the id of its boot on Linux, else its name."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def offset(*, host: str | None = None, now: Callable[[], float] = time.perf_counter) -> Offset:
    """Return the offset of this rank's clock to rank 0's. All ranks of the default group call it together.

    host   by default `host_id()`; ranks that give the same as rank 0 share its clock
    now    the clock, in seconds
    """
    hosts: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(hosts, host or host_id())
    mine, elsewhere = dist.get_rank(), [rank for rank, name in enumerate(hosts) if name != hosts[0]]
    if mine == 0:
        for rank in elsewhere:
            _answer(rank, now)
    return _ask(now) if mine in elsewhere else Offset(seconds=0.0, uncertainty_s=0.0, how=SAME_HOST)


def _answer(rank: int, now: Callable[[], float]) -> None:
    reading = torch.zeros((), dtype=torch.float64)
    for _ in range(ROUND_TRIPS):
        dist.recv(reading, rank)
        dist.send(torch.tensor(now(), dtype=torch.float64), rank)


def _ask(now: Callable[[], float]) -> Offset:
    trips, reading = [], torch.zeros((), dtype=torch.float64)
    for _ in range(ROUND_TRIPS):
        sent = now()
        dist.send(reading, 0)
        dist.recv(reading, 0)
        received = now()
        trips.append((received - sent, reading.item() - (sent + received) / 2))
    round_trip, seconds = min(trips)
    return Offset(seconds=seconds, uncertainty_s=round_trip / 2, how=PING_PONG.format(ROUND_TRIPS))
