"""Which host a rank is on, and whether the interface it would talk over leads to the ranks of the others."""

from __future__ import annotations

import os
import socket

from dpviz.questions.base import WrongValue

LOOPBACKS = ("lo", "lo0")


def this_one() -> str:
    """Return what tells this host from another: the id of its boot, and of the network namespace, since one machine can
    stand for several hosts (containers do).
    """
    from dpviz.measure import clock

    try:
        return f"{clock.host_id()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:  # no namespaces here
        return clock.host_id()


def interface() -> str:
    """Return the interface that gloo talks over: GLOO_SOCKET_IFNAME, set to the loopback where it is not."""
    from dpviz.ranks import rank

    return os.environ.setdefault("GLOO_SOCKET_IFNAME", rank.LOOPBACK)


def check_interface(store, rank: int, world_size: int) -> None:
    """Raise ValueError, the same sentence on every rank, where ranks of several hosts would talk over a loopback, or
    over an interface that their host does not have; they would wait for one another until the timeout.
    """
    names = [name for _, name in socket.if_nameindex()]
    store.set(str(rank), "\n".join([this_one(), interface(), *names]))
    everyone = [store.get(str(other)).decode().split("\n") for other in range(world_size)]
    several = len({place for place, *_ in everyone}) > 1
    for other, (_, asked_for, *there) in enumerate(everyone):
        missing = [name for name in asked_for.split(",") if name not in there]
        if missing:
            raise WrongValue(
                f"GLOO_SOCKET_IFNAME is {asked_for} on rank {other}, whose host has {', '.join(there)}. "
                "Export the name of its network card on each host."
            )
        if several and asked_for in LOOPBACKS:
            cards = ", ".join(name for name in there if name not in LOOPBACKS) or "none"
            raise WrongValue(
                f"the ranks are on several hosts, but rank {other} would talk over {asked_for}, its loopback, which "
                "does not leave the host. On each host export GLOO_SOCKET_IFNAME=NAME, its network card "
                f"(there: {cards})."
            )
