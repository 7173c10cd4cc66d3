"""Rehearse a launch on two hosts on this one machine: `python cluster/two_hosts.py [--gbps RATE] torchrun ...`.

The command runs twice at once, as it would be typed on host0 and on host1. Each has a host name, a network card eth0
and a loopback of its own (Linux namespaces; no root, no container), so the line is the one for real hosts:

    python cluster/two_hosts.py torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d \\
        --rdzv-endpoint host0:29500 -m dpviz run zero --world-size 4 --stage 3 --json

GLOO_SOCKET_IFNAME is set to eth0, unless it is exported. --gbps gives each card that rate, 10^9 bits a second. Both
share this machine's cores and memory: it shows that a launch works and what it sends, and says nothing of speed.
torchrun's agents listen on all interfaces, which here are private: nothing can be reached from outside. When it ends,
by Ctrl-C too, so does everything that it started.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from dpviz.ranks import network
from dpviz.ranks.link import GBPS

HOSTS = {"host0": "10.0.0.1", "host1": "10.0.0.2"}  # the addresses that dpviz.ranks.network gives its slots
CARD = "eth0"
GRACE_S = 10  # for torchrun's agents to stop their ranks
_NEWNS, _NEWUTS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000000, 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> int:
    """Run the command on both hosts and return its exit status, the first that is not 0."""
    try:
        gbps, command = _parsed(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if not command:
        print(__doc__.strip())
        return 2
    # what an agent leaves behind becomes a child of ours
    network.check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        network.enter(also=_NEWNS)
        network.check(_libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None))  # what is mounted here stays here
        slots = network.Network()
        slots.grow(len(HOSTS))
        if gbps:
            slots.shape(len(HOSTS), gbps=gbps, latency_us=0.0)
    except (OSError, NetlinkError) as error:
        print(f"this system gives no namespaces to an ordinary user ({error.args[-1]}).", file=sys.stderr)
        return 3
    with tempfile.NamedTemporaryFile("w", prefix="dpviz-hosts-") as names:
        pairs = "".join(f"{address} {name}\n::ffff:{address} {name}\n" for name, address in HOSTS.items())
        names.write(f"127.0.0.1 localhost\n{pairs}")
        names.flush()
        try:
            agents = [_start(command, gbps, name, slots.slots[i], names.name) for i, name in enumerate(HOSTS)]
            return _ended(agents)
        finally:
            _end_all()


def _parsed(arguments: list[str]) -> tuple[float | None, list[str]]:
    """Return the rate, None for no limit, and the command. Raises ValueError with a sentence."""
    gbps, command = None, arguments
    if arguments[:1] == ["--gbps"]:
        given, command = "".join(arguments[1:2]), arguments[2:]
        with contextlib.suppress(ValueError):
            gbps = float(given)
        if gbps is None or not GBPS.low <= gbps <= GBPS.high:
            raise ValueError(
                f"--gbps is {given!r}, but it must be a rate from {GBPS.low:g} to {GBPS.high:g}, in 10^9 bits a "
                "second. Leave it out for no limit."
            )
        if not command:
            raise ValueError(f"--gbps {given} stands alone. Write the command after it: --gbps {given} torchrun ...")
    if command and shutil.which(command[0], path=_programs()) is None:
        raise ValueError(
            f"there is no command {command[0]}. Give one that this machine has, as torchrun; "
            "the only option of its own is --gbps RATE, and it comes first."
        )
    return gbps, command


def _programs() -> str:
    """Return where commands are looked for: first where this python is, for its torchrun."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def _network_in_words(gbps: float | None) -> str:
    """Return what figures say below their titles."""
    return "namespaces of one machine" + (f", {gbps:g} Gb/s" if gbps else "")


def _start(command: list[str], gbps: float | None, name: str, namespace: int, names: str) -> subprocess.Popen:
    parent = os.getpid()
    environment = {"GLOO_SOCKET_IFNAME": CARD, "DPVIZ_NETWORK": _network_in_words(gbps), **os.environ}
    environment["PATH"] = _programs()

    def become_a_host() -> None:  # in the child, before the command
        network.check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0))
        if os.getppid() != parent:
            os._exit(1)
        network.hop(namespace)
        network.check(_libc.unshare(_NEWNS | _NEWUTS))
        network.check(_libc.sethostname(name.encode(), len(name)))
        network.check(_libc.mount(names.encode(), b"/etc/hosts", None, _MS_BIND, None))
        with IPRoute() as net:
            card = net.link_lookup(ifname=network.NIC)[0]
            net.link("set", index=card, state="down")
            net.link("set", index=card, ifname=CARD)
            net.link("set", index=card, state="up")

    return subprocess.Popen(command, env=environment, preexec_fn=become_a_host, start_new_session=True)


def _ended(agents: list[subprocess.Popen]) -> int:
    """Wait until all have ended, or one has failed."""
    while any(agent.poll() is None for agent in agents):
        if failed := [agent.returncode for agent in agents if agent.returncode]:
            return failed[0]
        time.sleep(0.05)
    return max((abs(agent.returncode) for agent in agents), default=0)


def _end_all() -> None:
    """Ask everything below this process to end, and then end it."""
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        left = psutil.Process().children(recursive=True)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                stop(process)
        psutil.wait_procs(left, timeout=GRACE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
