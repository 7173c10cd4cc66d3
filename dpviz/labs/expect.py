"""What a lab's check says when it fails: what was measured and what was expected, and nothing of the way there."""

from __future__ import annotations

import math
from typing import Any

MOST = 200  # characters of a value that are shown


def equal(what: str, measured: Any, expected: Any) -> None:
    """Raise AssertionError unless the two are equal. `what` names what was measured, such as "bytes sent by rank 0"."""
    _hold(bool(measured == expected), f"{what}: measured {_text(measured)}, expected {_text(expected)}.")


def close(what: str, measured: Any, expected: Any, *, rtol: float = 1e-6, atol: float = 0.0) -> None:
    """Raise AssertionError unless numbers, or lists or tensors of numbers of one shape, agree to rtol * |expected| +
    atol.
    """
    one, two = _flat(measured), _flat(expected)
    _hold(len(one) == len(two), f"{what}: measured {len(one)} numbers, expected {len(two)}.")
    apart = [(abs(a - b), a, b) for a, b in zip(one, two, strict=True) if not abs(a - b) <= rtol * abs(b) + atol]
    if apart:
        worst = max(apart, key=lambda each: math.inf if math.isnan(each[0]) else each[0])
        some = "" if len(one) == 1 else f" (the worst of {len(apart)} of {len(one)} numbers that differ)"
        raise AssertionError(f"{what}: measured {worst[1]:.6g}, expected {worst[2]:.6g}{some}.")


def at_most(what: str, measured: float, limit: float, *, unit: str = "") -> None:
    """Raise AssertionError where `measured` is above `limit`."""
    unit = f" {unit}" if unit else ""
    _hold(measured <= limit, f"{what}: measured {measured:,.6g}{unit}, and at most {limit:,.6g}{unit} is allowed.")


def at_least(what: str, measured: float, limit: float, *, unit: str = "") -> None:
    """Raise AssertionError where `measured` is below `limit`."""
    unit = f" {unit}" if unit else ""
    _hold(measured >= limit, f"{what}: measured {measured:,.6g}{unit}, and at least {limit:,.6g}{unit} is needed.")


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:  # raised, not asserted: a check must also hold under python -O
        raise AssertionError(otherwise)


def _flat(value: Any) -> list[float]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [number for one in value for number in _flat(one)]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AssertionError(f"a number was expected, and {_text(value)} came.")
    return [float(value)]


def _text(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= MOST else text[: MOST - 1] + "…"
