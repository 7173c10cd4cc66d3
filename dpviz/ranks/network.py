"""The ranks' private network, on the rank server's side: an interface a rank, shaped by the kernel, without root.

    the server's namespace   its loopback, over which ranks talk without a link, and a bridge, the switch
    a namespace a slot       one interface, `nic`, the far end of a port of that bridge

A token bucket at each end of this cable limits what the rank sends and what it receives, as a full-duplex network card
does. Nothing here reaches the outside, nor is reached from it; with the server's end the kernel takes it all away.

A slot is the place of rank 0, 1, 2 ..., and outlives the process that fills it: the kernel cleans up a dead rank's
namespace late, so its names and addresses could not be made anew at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Iterator

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

NIC, BRIDGE = "nic", "switch"
MTU = 9000  # jumbo frames: fewer packets for the one machine that plays sender, switch and receiver
# What may be sent at once. Small, since a bucketful is free; but above 64 KiB, the kernel's largest packet, which it
# would have to cut: measured at k = 8 and 1 Gb/s that made an all-reduce of 8 MiB take 1.7 times the formula
LEAST_BURST_BYTES, BURST_S = 72 * 1024, 200e-6
QUEUE_S, LEAST_QUEUE_BYTES = 0.1, 4 << 20  # what waits for its turn; TCP fills no more than a few MiB of it
NETEM_PACKETS = 100_000  # that may be under way at once: netem drops what is beyond

_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def check(code: int) -> None:
    """Raise OSError, by errno, where a call of libc has failed."""
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def hop(namespace: int) -> None:
    """Move this thread, and the threads that it starts from now on (gloo's), into a network namespace."""
    check(_libc.setns(namespace, _NEWNET))


def trial() -> dict:
    """Try everything in a child process, and return {"reason": why links cannot be had here, "" if they can,
    "latency": whether the kernel can delay packets}. This process stays where it is; it must have one thread.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, _tried().encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    outcome, _, more = said.partition(":")
    if outcome == "yes":
        return {"reason": "", "latency": more == "latency"}
    return {"reason": more or "the process that tried it ended without an answer", "latency": False}


def _tried() -> str:
    step = "network namespaces are refused"
    try:
        enter()
        step = "the kernel lacks virtual interfaces or a bridge"
        network = Network()
        network.grow(1)
        step = "the kernel lacks the token bucket filter"
        network.shape(1, gbps=1.0, latency_us=0)
    except (OSError, NetlinkError) as error:
        return f"no:{step} ({error.args[-1]})"
    try:
        network.shape(1, gbps=1.0, latency_us=10)
        return "yes:latency"
    except NetlinkError:
        return "yes:"


def enter(*, also: int = 0) -> None:
    """Enter a network namespace of its own: as root at once, else inside a user namespace of its own, which any user
    may make where the system allows it. `also` are flags of further namespaces, for unshare. The process must have one
    thread. Raises OSError where it is refused.
    """
    with contextlib.suppress(OSError):
        return check(_libc.unshare(_NEWNET | also))  # a user namespace would cost root the files of other users
    user, group = os.getuid(), os.getgid()
    check(_libc.unshare(_NEWUSER | _NEWNET | also))
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


class Network:
    """The slots and their interfaces. Made after `enter`."""

    def __init__(self) -> None:
        self.home = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.slots: list[int] = []  # the namespaces' descriptors
        self.shaped: list[tuple[float, float]] = []  # gbps and latency_us of each slot
        with IPRoute() as net:
            net.link("set", index=net.link_lookup(ifname="lo")[0], state="up")
            net.link("add", ifname=BRIDGE, kind="bridge")
            self.bridge = net.link_lookup(ifname=BRIDGE)[0]
            net.link("set", index=self.bridge, state="up", mtu=MTU)

    def grow(self, count: int) -> None:
        """Have at least `count` slots."""
        for slot in range(len(self.slots), count):
            check(_libc.unshare(_NEWNET))
            own = os.open("/proc/self/ns/net", os.O_RDONLY)
            hop(self.home)
            with IPRoute() as net:
                far_end = {"ifname": NIC, "net_ns_fd": f"/proc/self/fd/{own}"}
                net.link("add", ifname=f"port{slot}", kind="veth", peer=far_end)
                net.link("set", index=_index(net, f"port{slot}"), master=self.bridge, mtu=MTU, state="up")
            with self._inside(own), IPRoute() as net:
                net.link("set", index=_index(net, "lo"), state="up")
                nic = _index(net, NIC)
                net.addr("add", index=nic, address=f"10.0.{slot // 250}.{slot % 250 + 1}", prefixlen=16)
                net.link("set", index=nic, mtu=MTU, state="up")
            self.slots.append(own)
            self.shaped.append((math.inf, 0.0))

    def shape(self, count: int, *, gbps: float, latency_us: float) -> None:
        """Give the first `count` slots this rate in each direction, and what they send this delay. May be done while
        ranks are talking. Raises NetlinkError where the kernel lacks what is asked for.
        """
        self.grow(count)
        wanted = (gbps, latency_us)
        changing = [slot for slot in range(count) if self.shaped[slot] != wanted]
        if not changing:
            return
        with IPRoute() as net:
            for slot in changing:
                _limit(net, f"port{slot}", gbps)
        for slot in changing:
            with self._inside(self.slots[slot]), IPRoute() as net:
                _limit(net, NIC, gbps)
                _delay(net, latency_us, before_us=self.shaped[slot][1])
            self.shaped[slot] = wanted

    def of_slot(self, slot: int) -> tuple[int, int | None]:
        """Return the namespaces that the slot's rank lives in by turns: without a link, and with one (None where the
        system has refused it).
        """
        return self.home, self.slots[slot] if slot < len(self.slots) else None

    @contextlib.contextmanager
    def _inside(self, namespace: int) -> Iterator[None]:
        hop(namespace)
        try:
            yield
        finally:
            hop(self.home)


def _index(net: IPRoute, name: str) -> int:
    return net.link_lookup(ifname=name)[0]


def _limit(net: IPRoute, interface: str, gbps: float) -> None:
    rate = int(gbps * 1e9 / 8)
    burst = max(LEAST_BURST_BYTES, int(rate * BURST_S))
    queue = max(LEAST_QUEUE_BYTES, int(rate * QUEUE_S))
    net.tc("replace", "tbf", index=_index(net, interface), handle="1:", rate=rate, burst=burst, limit=queue)


def _delay(net: IPRoute, latency_us: float, *, before_us: float) -> None:
    """Put netem below the token bucket, or take it away."""
    nic = _index(net, NIC)
    if latency_us:
        net.tc("replace", "netem", index=nic, parent="1:1", handle="10:", delay=latency_us, limit=NETEM_PACKETS)
    elif before_us:
        net.tc("del", index=nic, parent="1:1", handle="10:")
