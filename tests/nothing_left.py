"""Is anything left? A census of what a launch may leave behind, told in sentences.

Who belongs to us is known by a mark in the environment: an interpreter that was started with it hands it on to
everything that it starts, also to what has lost its parent or lives in a session and namespace of its own.
"""

from __future__ import annotations

import collections
import os
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

MARK = "DPVIZ_CENSUS"
PROC = Path("/proc")


def marked(mark: str) -> dict[int, str]:
    """The processes on the machine whose environment has the mark, and what each is; those that have ended are none."""
    found = {}
    wanted = f"{MARK}={mark}".encode()
    for pid in psutil.pids():
        try:
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found[pid] = " ".join(process.cmdline())[:80]
        except (OSError, psutil.Error):  # it has ended meanwhile, or is another user's
            pass
    return found


def _links(pid: int, where: str) -> Iterator[str]:
    """What the links in a folder of this process point to: its descriptors, its namespaces."""
    try:
        for link in (PROC / str(pid)).glob(where):
            try:
                yield os.readlink(link)
            except OSError:
                pass
    except OSError:
        pass


def _networks(pid: int) -> set[str]:
    """The network namespaces that a process lives in or holds open."""
    return set(_links(pid, "task/*/ns/net")) | {name for name in _links(pid, "fd/*") if name.startswith("net:[")}


def _sockets(pid: int) -> set[str]:
    return {name for name in _links(pid, "fd/*") if name.startswith("socket:[")}


def _open_sockets() -> set[str]:
    """Every socket that this process's own network has, whoever holds it; those that only wait to be forgotten have
    the number 0.
    """
    found = set()
    for table, column in (("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9), ("unix", 6)):
        for line in (PROC / "net" / table).read_text().splitlines()[1:]:
            found.add(f"socket:[{line.split()[column]}]")
    return found - {"socket:[0]"}


def _files(folder: str) -> dict[str, int]:
    """What lies in a folder, by name, with how many files below it; a random part of a name is left out."""
    found: dict[str, int] = collections.Counter()
    for name in sorted(os.listdir(folder)):
        below = sum(len(files) for _, _, files in os.walk(os.path.join(folder, name)))
        found[re.sub(r"^(dpviz-|tmp).*", r"\1*", name)] += 1 + below
    return dict(found)


def caller() -> dict[str, dict[str, int]]:
    """What this interpreter has by kind and name: ours, threads, descriptors, sockets of its ranks, files."""
    ours = marked(os.environ[MARK])
    ranks = [pid for pid in ours if pid != os.getpid()]
    counts = {
        "process": collections.Counter(text for pid, text in ours.items() if pid != os.getpid()),
        "thread": collections.Counter(thread.name for thread in threading.enumerate()),
        "descriptor": collections.Counter(re.sub(r":\[.*|/dpviz-.*", "", name) for name in _links(os.getpid(), "fd/*")),
        "descriptor of a rank": collections.Counter(
            re.sub(r":\[.*|/dpviz-.*", "", name) for pid in ranks for name in _links(pid, "fd/*")
        ),
        "file": _files(os.environ["TMPDIR"]),
    }
    return {kind: dict(found) for kind, found in counts.items()}


def grown(before: dict, after: dict) -> list[str]:
    """A sentence for each thing of which `caller()` found more than before."""
    return [
        f"{now - before[kind].get(name, 0)} more {kind} {name!r}: {before[kind].get(name, 0)} before, {now} now"
        for kind, found in after.items()
        for name, now in found.items()
        if now > before[kind].get(name, 0)
    ]


class Watched:
    """An interpreter seen from outside: look while it lives, ask afterwards what is left of it.

    A network lives as long as a process is in it or holds it, or it is mounted. No process without the mark can have
    come into ours, and their numbers are given anew, so that others' networks must not be asked.
    """

    def __init__(self, mark: str, folder: str):
        self.mark, self.folder = mark, folder
        self.interfaces = socket.if_nameindex()
        self.own, self.networks, self.sockets = _networks(os.getpid()), set(), set()

    def look(self) -> None:
        for pid in marked(self.mark):
            self.networks |= _networks(pid) - self.own
            self.sockets |= _sockets(pid) - _sockets(os.getpid())  # the pipes' ends that we gave it are ours

    def left(self) -> list[str]:
        found = [f"process {pid} ({text})" for pid, text in marked(self.mark).items()]
        found += [f"file {name} ({count} in all)" for name, count in _files(self.folder).items()]
        found += [f"socket {name}" for name in self.sockets & _open_sockets()]
        mounted = (PROC / "self" / "mountinfo").read_text()
        found += [f"network {name}, mounted" for name in self.networks if name in mounted]
        if socket.if_nameindex() != self.interfaces:
            found.append(f"interfaces {socket.if_nameindex()}, before {self.interfaces}")
        return found

    def left_after(self, seconds: float) -> list[str]:
        """What is left, once nothing is or so many seconds have passed."""
        deadline = time.monotonic() + seconds
        while (found := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return found
