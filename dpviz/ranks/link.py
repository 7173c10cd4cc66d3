"""dp.Link: how fast the network between the ranks is to be, and whether this machine can do that."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from dpviz.questions.base import Field, WrongValue
from dpviz.ranks import sources

PROBE_S = 60  # for an interpreter that tries it out, on a slow and busy machine

GBPS = Field(
    name="link_gbps",
    kind="number",
    default=1.0,
    low=0.001,
    high=34.0,  # pyroute2 gives the kernel's token bucket its bytes a second in 32 bits
    help="rate of each rank's network interface in each direction, 10^9 bits a second",
)
LATENCY_US = Field(
    name="link_latency_us",
    kind="number",
    default=0.0,
    low=0.0,
    high=1_000_000.0,
    help="microseconds that everything a rank sends is delayed; needs the kernel's netem",
)


@dataclass(frozen=True)
class Support:
    """Whether ranks can have interfaces of their own here: true or false, and if not the `reason`.

    `latency` says whether the kernel can delay packets as well.
    """

    ok: bool
    reason: str
    latency: bool

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, kw_only=True)
class Link:
    """A network interface of its own for each rank, shaped by the kernel, for dpviz.launch(..., link=...).

    gbps        10^9 bits a second, in each direction (full duplex), from 0.001 to 34
    latency_us  microseconds that what a rank sends is delayed, 0 to 10^6; needs the kernel's netem

    Real packets, no root needed: the ranks live in a network of their own, which can reach nothing and be reached by
    nothing outside it. Where `supported()` is false, a launch runs over the plain loopback, and its environment says
    so. Raises ValueError for a wrong value. Built in lesson 04.
    """

    gbps: float = 1.0
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        for name, field in (("gbps", GBPS), ("latency_us", LATENCY_US)):
            try:
                object.__setattr__(self, name, dataclasses.replace(field, name=name).check(getattr(self, name)))
            except WrongValue as error:
                advice = " For no limit leave the link out: the loopback runs at its own speed." * (name == "gbps")
                raise WrongValue(f"{error}{advice}") from None

    @staticmethod
    def supported() -> Support:
        """Return whether this machine can, tried once by a process that makes an interface and limits it."""
        reason = _excluded()
        return Support(False, reason, False) if reason else _tried()

    def __str__(self) -> str:
        return f"link {self.gbps:.3g} Gb/s" + (f", {self.latency_us:g} µs" if self.latency_us else "")


def check(link: object) -> Link | None:
    """Return the link that a launch can have here: `link`, or None where there are none. Raises ValueError for what is
    no Link, and for a latency that the kernel cannot make.
    """
    if link is None:
        return None
    if not isinstance(link, Link):
        raise WrongValue(f"link is {link!r}, but it must be a Link, such as dpviz.Link(gbps=1.0), or None.")
    support = Link.supported()
    if support and link.latency_us and not support.latency:
        raise WrongValue(
            f"latency_us is {link.latency_us:g}, but this kernel cannot delay packets (it lacks netem). "
            "Leave it at 0: the rate alone can be set."
        )
    return link if support else None


@functools.cache
def _tried() -> Support:
    """Asked in a new interpreter, since only a process with one thread may enter a namespace."""
    code = "import json; from dpviz.ranks import link; print(json.dumps(link.found()))"
    with sources.python(code, descriptors=[], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            answer = json.loads(process.communicate(timeout=PROBE_S)[0])
        except (subprocess.TimeoutExpired, json.JSONDecodeError):
            process.kill()
            return Support(False, "the process that tried it gave no answer", False)
    return Support(answer["reason"] == "", answer["reason"], answer["latency"])


def found() -> dict:
    """Return {"reason": why there are no links here, "" if there are, "latency": whether they can have one}.

    Called by a process that has one thread.
    """
    if reason := _excluded():
        return {"reason": reason, "latency": False}
    try:
        from dpviz.ranks import network
    except ImportError as error:
        return {"reason": f"{error}: say python -m pip install -c constraints.txt -e .", "latency": False}
    return network.trial()


def _excluded() -> str:
    if os.environ.get("DPVIZ_LINK") == "none":
        return "DPVIZ_LINK=none has turned them off"
    if sys.platform != "linux":
        return "network interfaces for ranks need Linux"
    if sources.start_method() != "fork":
        return "ranks that are started one by one (spawn) cannot share a network"
    return ""
