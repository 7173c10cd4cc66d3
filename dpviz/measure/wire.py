"""Bytes that this process has put on the wire, from the kernel's TCP counters.

Each of gloo's connections is a TCP socket of the rank's own process, so the rank asks the kernel about it (TCP_INFO,
Linux 4.19 or newer). That is exact where an interface's counters would also count the traffic of others.
Retransmissions are subtracted. Offsets are those of struct tcp_info in linux/tcp.h.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator

from dpviz.records import COUNTED, MEASURED

_ESTABLISHED = 1
_NOTSENT, _RECEIVED, _SENT, _RETRANSMITTED = 144, 128, 200, 208
# How long to wait for a connection on which the kernel sends nothing more of what it was handed: on a slow link a
# collective has returned long before all of it has left
_STUCK_S = 1.0


def how() -> str:
    """Return how bytes are obtained here; DPVIZ_WIRE=counted forces the mode of platforms without counters."""
    return MEASURED if sys.platform == "linux" and os.environ.get("DPVIZ_WIRE") != "counted" else COUNTED


def recorder_entries() -> int:
    """Return how many collectives a rank remembers: few where the kernel counts the bytes, as many as a lesson makes
    where we count.
    """
    return 256 if how() == MEASURED else 20_000


class Counters:
    """Bytes since they were last asked for. A connection opened meanwhile counts whole; one that has closed counts as
    far as somebody looked before, so process groups are kept open: see `destroyed.py`.
    """

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, int]] = {}
        self.noted = (0, 0)  # of earlier looks, not asked for yet
        self.looking = threading.RLock()  # a rank's two threads do
        self.ignored: set[int] = set()
        self.ignored_port: int | None = None  # of a rendezvous store, whose traffic is no collective's

    def ignore(self) -> None:
        """Leave out, from now on, the connections opened since the last look."""
        self.ignored |= _connections(self.ignored_port).keys() - self.seen.keys()

    def look(self) -> None:
        """Note the bytes so far, for a connection that may close before they are asked for."""
        if how() == COUNTED:
            return
        with self.looking:
            every = _connections(self.ignored_port)
            now = {inode: counts for inode, counts in every.items() if inode not in self.ignored}
            for inode, counts in now.items():
                before = self.seen.get(inode, (0, 0))
                self.noted = tuple(n + c - b for n, c, b in zip(self.noted, counts, before, strict=True))
            self.seen = now

    def since_last(self) -> tuple[int, int]:
        """Return (sent, received) bytes since the last call."""
        with self.looking:
            self.look()
            (sent, received), self.noted = self.noted, (0, 0)
        return sent, received


def sent_by_connection() -> dict[tuple[str, str], int]:
    """Return the bytes sent so far on each open connection, by its two ends, this process's first; nothing where the
    kernel does not tell. The process at the other end knows the same connection by its ends the other way round.
    """
    if how() == COUNTED:
        return {}
    return {ends: _sent(info) for _, ends, info in _established()}


def _connections(ignored_port: int | None) -> dict[int, tuple[int, int]]:
    """Return {inode: (bytes sent, bytes received)} of this process's established TCP connections, but those to or
    from that port.
    """
    return {
        inode: (_sent(info), struct.unpack_from("Q", info, _RECEIVED)[0])
        for inode, ends, info in _established()
        if ignored_port not in (int(end.rpartition(":")[2]) for end in ends)
    }


def _established() -> Iterator[tuple[int, tuple[str, str], bytes]]:
    """Yield (inode, (own end, other end), tcp_info) of this process's established TCP connections."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.type == socket.SOCK_STREAM and connection.family in (socket.AF_INET, socket.AF_INET6):
                    info = _drained(connection)
                    if info[0] == _ESTABLISHED:
                        own, other = (f"{host}:{port}" for host, port, *_ in _ends(connection))
                        yield os.fstat(connection.fileno()).st_ino, (own, other), info
        except OSError:  # closed while we looked
            continue


def _ends(connection: socket.socket) -> tuple[tuple, tuple]:
    return connection.getsockname(), connection.getpeername()


def _sent(info: bytes) -> int:
    sent, retransmitted = (struct.unpack_from("Q", info, at)[0] for at in (_SENT, _RETRANSMITTED))
    return sent - retransmitted


def _drained(connection: socket.socket) -> bytes:
    """Return tcp_info once everything handed to the kernel has been sent, or nothing more of it is."""
    least, deadline = None, 0.0
    while True:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        left = struct.unpack_from("I", info, _NOTSENT)[0]
        if least is None or left < least:
            least, deadline = left, time.monotonic() + _STUCK_S
        if left == 0 or time.monotonic() > deadline:
            return info
        time.sleep(0.001)
