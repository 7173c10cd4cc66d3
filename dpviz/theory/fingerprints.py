"""What it costs to compare replicas: bytes read a rank and step, and how soon a difference is seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Cost:
    """`read_bytes` a rank and step, the `seconds` that takes, and in how many steps a difference in one single value
    is seen on average.
    """

    read_bytes: int
    seconds: float
    steps_until_seen: float


def costs(
    *, values: float, ranks: int, bytes_per_s: dict[str, float], value_bytes: int = 16, probed: int = 64
) -> dict[str, Cost]:
    """Return the cost of each fingerprint of a state of `values` values, divided equally over `ranks`.

    bytes_per_s   how fast a rank reads for a "digest" (a hash of every bit), a "checksum" (a sum of all values), a
                  "probe" (a hash of `probed` values at drawn places)
    value_bytes   of a value and what belongs to it: 16 under mixed precision Adam, so that 5e12 parameters are 80 TB

    A probe of m of n values sees a lone difference with probability m / n a step, after n / m steps on average
    (geometric distribution). Built in lesson 11.
    """
    mine = values / ranks
    read = {name: round(mine * value_bytes) for name in ("digest", "checksum")} | {"probe": probed * value_bytes}
    until = {"digest": 1.0, "checksum": 1.0, "probe": max(1.0, mine / probed)}
    return {
        name: Cost(read_bytes=size, seconds=size / bytes_per_s[name], steps_until_seen=until[name])
        for name, size in read.items()
    }
