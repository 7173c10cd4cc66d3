"""The rank server: one process a launcher, which has imported torch once and forks a rank in milliseconds.

Python's own forkserver dies of the interrupt that Jupyter sends to the whole process group, and leaves stuck ranks
alive when the kernel is killed. This one ignores SIGINT, lives in a session of its own, and watches the launcher's
end of a socket: when that closes, however the launcher went, it kills every rank, removes the rendezvous directory
and ends. It keeps one thread for ever, which makes fork safe.

Messages are JSON and keep their boundaries, the socket being SOCK_SEQPACKET:
    to the server      {"fork": slot} with two file descriptors: the rank's control socket, and where its prints go
                       {"shape": slots, "gbps": rate, "latency_us": delay}, see network.py
    from the server    {"ready": threads}  {"forked": pid}  {"shaped": "", or why it could not be done}
                       {"ended": pid, "code": exit status, negative for a signal}
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import shutil
import signal
import socket

from dpviz.ranks import link, sources

PR_SET_PDEATHSIG = 1
FIRST_TO_GO = "500"  # when memory runs out Linux ends a rank, which the launch tells, and not the notebook's kernel
PRELOAD = (
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.debug",  # what a rank forgets with between launches: else each would import its own
    "numpy",
    "cloudpickle",
    "dpviz.ranks.rank",
)


def preload() -> None:
    for name in PRELOAD:
        importlib.import_module(name)
    from dpviz import data

    for package in ("dpviz.questions", "dpviz.experiments"):
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)
    for name in ("digits", "text"):
        data.load(name)


def main(descriptor: int, directory: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    links, network = link.found(), None
    if links["reason"] == "":
        from dpviz.ranks.network import Network, enter

        try:
            enter()  # now, while there is one thread
            network = Network()
        except OSError as error:  # the trial has used up what the system allows
            links["reason"] = f"network namespaces are refused ({error.strerror})"
    preload()
    gc.collect()
    gc.freeze()  # what is shared with the ranks stays shared: the collector would write into every page
    Server(socket.socket(fileno=descriptor), directory, network or links["reason"]).serve()


class Server:
    def __init__(self, launcher: socket.socket, directory: str, network):
        """`network` is a Network, or why there is none."""
        self.launcher, self.directory = launcher, directory
        self.network, self.why_none = (None, network) if isinstance(network, str) else (network, "")
        self.ready = selectors.DefaultSelector()
        self.ready.register(launcher, selectors.EVENT_READ)
        self.ranks: dict[int, int] = {}  # pid -> pidfd
        self.prctl = ctypes.CDLL(None).prctl

    def say(self, **message) -> None:
        try:
            self.launcher.send(json.dumps(message).encode())
        except (BrokenPipeError, ConnectionResetError):
            self.end()

    def serve(self) -> None:
        self.say(ready=len(os.listdir("/proc/self/task")))
        while True:
            for key, _ in self.ready.select():
                if key.fileobj is self.launcher:
                    self.hear()
                else:
                    self.reap(key.data, key.fileobj)

    def hear(self) -> None:
        try:
            message, descriptors, *_ = socket.recv_fds(self.launcher, 4096, 2)
        except ConnectionResetError:
            message = b""
        if not message:
            self.end()
        wanted = json.loads(message)
        if "shape" in wanted:
            self.say(shaped=self.shape(wanted.pop("shape"), **wanted))
        else:
            self.fork(wanted["fork"], descriptors)

    def shape(self, slots: int, *, gbps: float, latency_us: float) -> str:
        """Return why the kernel refuses, "" where it does not."""
        if self.network is None:
            return self.why_none
        try:
            self.network.shape(slots, gbps=gbps, latency_us=latency_us)
        except Exception as error:  # netlink's, or the system's: the launcher tells it, and the server goes on
            return f"{type(error).__name__}: {error}"
        return ""

    def fork(self, slot: int, descriptors: list[int]) -> None:
        if self.network:
            with contextlib.suppress(Exception):  # no room for one more: it talks over the loopback, `shape` says why
                self.network.grow(slot + 1)
        pid = os.fork()
        if pid == 0:
            self.become_rank(slot, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self.ranks[pid] = os.pidfd_open(pid)
        self.ready.register(self.ranks[pid], selectors.EVENT_READ, pid)
        self.say(forked=pid)

    def become_rank(self, slot: int, control: int, output: int) -> None:
        try:
            server = os.getppid()
            self.prctl(
                PR_SET_PDEATHSIG, signal.SIGKILL
            )  # the server has one thread for ever, so its death is the process's
            if os.getppid() != server:
                os._exit(1)
            os.setpgid(0, 0)  # so that what it starts can be ended along with it
            with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
                score.write(FIRST_TO_GO)
            self.ready.close()
            self.launcher.close()
            for pidfd in self.ranks.values():
                os.close(pidfd)
            from dpviz.ranks import rank

            rank.serve(control, output, networks=self.network.of_slot(slot) if self.network else None)
        finally:
            os._exit(1)

    def reap(self, pid: int, pidfd: int) -> None:
        sources.end(pid)  # what it had started, too: a rank that sees the launcher's end before us ends by itself
        self.ready.unregister(pidfd)
        os.close(pidfd)
        del self.ranks[pid]
        self.say(ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def end(self) -> None:
        for pid in self.ranks:
            sources.end(pid)
        shutil.rmtree(self.directory, ignore_errors=True)
        os._exit(0)
