"""Checks that a lesson makes of its own runs: each returns a sentence with the number it found, and raises
AssertionError when wrong.
"""

from __future__ import annotations

import collections

import numpy

from dpviz.records import Run


def check_same_gradients(by_hand: Run, other: Run, *, rtol: float = 1e-6) -> str:
    """Check that every rank of both runs gave its optimizer the same first gradient (results["reduced"]), to `rtol`
    of its largest entry.
    """
    vectors = numpy.array([result["reduced"] for run in (by_hand, other) for result in run.results])
    worst = float(numpy.abs(vectors - vectors[0]).max() / max(numpy.abs(vectors[0]).max(), 1e-300))
    _hold(worst <= rtol, f"The gradients differ: largest relative difference {worst:.1e}, above {rtol:.0e}.")
    return f"Same gradient on every rank of both runs (relative difference below {rtol:.0e})."


def check_same_trajectory(by_hand: Run, other: Run, *, atol: float = 1e-6) -> str:
    """Check that two runs have the same losses on every rank and the same sampled parameters after every step, to
    `atol`.
    """
    one, two = by_hand.frame(), other.frame()
    shape = [[frame["rank"].nunique(), frame["step"].nunique(), len(frame)] for frame in (one, two)]
    _hold(
        shape[0] == shape[1],
        f"The runs have {shape[0][0]} and {shape[1][0]} ranks, {shape[0][2]} and {shape[1][2]} records: "
        "give both the same world size and steps.",
    )
    differences = [numpy.abs(one["loss"].to_numpy(float) - two["loss"].to_numpy(float))]
    if "parameters" in one and "parameters" in two:
        here, there = (numpy.array(frame["parameters"].tolist()) for frame in (one, two))
        numeric = here.dtype.kind == there.dtype.kind == "f"  # else fingerprints, which are equal or not
        differences.append(numpy.abs(here - there) if numeric else numpy.where(here == there, 0.0, numpy.inf))
    worst = float(max(difference.max() for difference in differences))  # numpy's max keeps a NaN
    _hold(worst <= atol, f"The trajectories part: largest difference {worst:.1e}, above {atol:.0e}.")
    steps = one["step"].nunique()
    return f"Same trajectory over {steps} step{'s' * (steps != 1)} on every rank (difference below {atol:.0e})."


def _hold(is_so: bool, otherwise: str) -> None:
    if not is_so:  # raised, not asserted: a check must also hold under python -O
        raise AssertionError(otherwise)


def collective_counts(**runs: Run):
    """Return a table, a row a named run: how many of each collective its rank 0 issued.

    Raises ValueError for a run that issued more than are kept (256).
    """
    import pandas

    for name, run in runs.items():
        if run.collectives[0] and min(entry.number for entry in run.collectives[0]) > 1:
            raise ValueError(
                f"{name} issued more collectives than are kept, so they cannot be counted. Give it fewer steps."
            )

    counts = {name: collections.Counter(entry.name for entry in run.collectives[0]) for name, run in runs.items()}
    return pandas.DataFrame(counts).T.fillna(0).astype(int).rename_axis("collectives issued by rank 0")
