"""Where rank processes come from: forked by a rank server (Linux), or started one by one (elsewhere).

Both give the pool the same things: `start(slot, control, output)` begins a rank that serves these descriptors,
`news()` tells which ranks have begun and ended, and `close()` ends them all. `start` does not wait, so eight ranks
begin together. The server alone can `shape` a network for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from dpviz.measure import wire
from dpviz.ranks import travel
from dpviz.ranks.errors import RankError

if TYPE_CHECKING:
    from dpviz.ranks.link import Link

# numpy's OpenBLAS and OpenMP would start threads at import, and a process with threads cannot be forked safely
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
MAKE_ROOM = "Make some, or let the environment variable TMPDIR name a folder that has it"
_ROOT = os.path.dirname(travel.DPVIZ.rstrip(os.sep))


@dataclass(eq=False)
class Handle:
    """One rank process as the launcher sees it; `pid` is None until the server says it."""

    control: Connection
    output: int
    pid: int | None = None


def start_method() -> str:
    """Return "fork" where the rank server can run, else "spawn"; DPVIZ_START_METHOD=spawn forces the latter."""
    return "fork" if sys.platform == "linux" and os.environ.get("DPVIZ_START_METHOD") != "spawn" else "spawn"


def make():
    """Return a new source of ranks. Raises RankError on Windows, which has none of the sockets that this needs."""
    if os.name == "nt":
        raise RankError("dpviz starts its ranks on Linux and macOS; on Windows use it inside WSL 2")
    return RankServer() if start_method() == "fork" else Spawned()


def end(pid: int) -> None:
    """Kill a rank and the processes it has started, which are in its process group."""
    for kill in (os.killpg, os.kill):  # one just forked may not have its group yet
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
            return


def _folder() -> str:
    """Return a new folder where ranks meet and leave their temporary files; the rank server removes it."""
    try:
        return tempfile.mkdtemp(prefix="dpviz-")
    except OSError as error:
        raise RankError(f"there is no room for the ranks' temporary files: {error.strerror}. {MAKE_ROOM}") from None


def forget_meetings(folder: str, *, but: str = "") -> None:
    """Remove the files at which ranks have met, `but` one: killed ranks leave theirs, torch may miss its own."""
    with contextlib.suppress(OSError):  # the server has ended, and has removed them all
        for name in os.listdir(folder):
            if name.isdigit() and name != os.path.basename(but):
                os.unlink(os.path.join(folder, name))


def _conditions() -> tuple:
    """Return what ranks take over from here when they start: how to start and to count, whether to have links, and
    dpviz's own files.
    """
    return start_method(), wire.how(), os.environ.get("DPVIZ_LINK"), travel.source_times()


def python(code: str, *arguments: object, descriptors: list[int], folder: str = "", **options) -> subprocess.Popen:
    """Start this Python with `code`, dpviz importable, one thread a library, in a session of its own (an interrupt
    must not reach it). `folder` is for what torch compiles: when imported, torch would make one for it, and leave it.
    """
    caches = {"TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "compiled")} if folder else {}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {_ROOT!r}); {code}", *map(str, arguments)],
        pass_fds=descriptors,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        env={**caches, **os.environ, **ONE_THREAD, "TORCH_FR_BUFFER_SIZE": str(wire.recorder_entries())},
        **options,
    )


class RankServer:
    """Forks ranks through `dpviz.ranks.server`."""

    def __init__(self) -> None:
        self.conditions = _conditions()
        self.directory = _folder()
        self.log = os.fdopen(os.memfd_create("dpviz-log"), "w+b")  # in memory: a full disk can be told as well
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process = python(
                "from dpviz.ranks import server; server.main(int(sys.argv[1]), sys.argv[2])",
                theirs.fileno(),
                self.directory,
                descriptors=[theirs.fileno()],
                folder=self.directory,
                stdout=self.log,
                stderr=self.log,
            )
        except OSError as error:
            shutil.rmtree(self.directory)
            self.socket.close()
            self.log.close()
            raise RankError(f"the rank server could not be started: {error.strerror}") from None
        finally:
            theirs.close()
        self.selectable = self.socket
        self.ready = False  # until it says that everything is imported

    def start(self, slot: int, control: int, output: int) -> None:
        self._say({"fork": slot}, [control, output])

    def shape(self, slots: int, link: Link) -> None:
        """Give the first `slots` ranks' interfaces this link's rate; the answer is among the news."""
        self._say({"shape": slots, "gbps": link.gbps, "latency_us": link.latency_us}, [])

    def _say(self, message: dict, descriptors: list[int]) -> None:
        try:
            socket.send_fds(self.socket, [json.dumps(message).encode()], descriptors)
        except OSError as error:
            raise EOFError("the rank server has ended") from error

    def news(self) -> list[dict]:
        """Return the server's messages that have arrived. Raises EOFError when it has ended."""
        messages = []
        while True:
            try:
                data = self.socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return messages
            except OSError:
                data = b""
            if not data:
                raise EOFError("the rank server has ended")
            messages.append(json.loads(data))
            self.ready |= "ready" in messages[-1]

    def usable(self) -> bool:
        """Whether it lives, and what it was started with still holds."""
        return self.process.poll() is None and self.conditions == _conditions()

    def said(self) -> str:
        """Return the last lines it printed before it ended."""
        self.log.seek(0)
        return "\n".join(self.log.read().decode(errors="replace").splitlines()[-5:])

    def close(self) -> None:
        self.socket.close()
        if self.ready:  # else it has no ranks yet, and would notice only after seconds of importing
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.process.kill()
        self.process.wait()
        self.log.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class Spawned:
    """Starts each rank as a new interpreter: seconds instead of milliseconds, and no shared memory."""

    selectable = None

    def __init__(self) -> None:
        self.conditions = _conditions()
        self.directory = _folder()
        self.processes: list[subprocess.Popen] = []
        self.unsaid: list[dict] = []

    def start(self, slot: int, control: int, output: int) -> None:
        process = python(
            "from dpviz.ranks import rank; rank.serve(int(sys.argv[1]), int(sys.argv[2]))",
            control,
            output,
            descriptors=[control, output],
            folder=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
        self.processes.append(process)
        self.unsaid.append({"forked": process.pid})

    def news(self) -> list[dict]:
        ended = [process for process in self.processes if process.poll() is not None]
        self.processes = [process for process in self.processes if process not in ended]
        messages = self.unsaid + [{"ended": process.pid, "code": process.returncode} for process in ended]
        self.unsaid = []
        return messages

    def usable(self) -> bool:
        return self.conditions == _conditions()

    def said(self) -> str:
        return ""

    def close(self) -> None:
        for process in self.processes:
            end(process.pid)
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
