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
    assert worst <= rtol, f"The gradients differ: largest relative difference {worst:.1e}, above {rtol:.0e}."
    return f"Same gradient on every rank of both runs (relative difference below {rtol:.0e})."


def check_same_trajectory(by_hand: Run, other: Run, *, atol: float = 1e-6) -> str:
    """Check that two runs have the same losses on every rank and the same sampled parameters after every step, to
    `atol`.
    """
    one, two = by_hand.frame(), other.frame()
    assert len(one) == len(two), (
        f"The runs have {len(one)} and {len(two)} records: give both the same world size and steps."
    )
    worst = float((one["loss"] - two["loss"]).abs().max())
    if "parameters" in one:
        worst = max(
            worst,
            float(numpy.abs(numpy.array(one["parameters"].tolist()) - numpy.array(two["parameters"].tolist())).max()),
        )
    assert worst <= atol, f"The trajectories part: largest difference {worst:.1e}, above {atol:.0e}."
    steps = one["step"].nunique()
    return f"Same trajectory over {steps} step{'s' * (steps != 1)} on every rank (difference below {atol:.0e})."


def collective_counts(**runs: Run):
    """Return a table, a row a named run: how many of each collective its rank 0 issued."""
    import pandas

    counts = {name: collections.Counter(entry.name for entry in run.collectives[0]) for name, run in runs.items()}
    return pandas.DataFrame(counts).T.fillna(0).astype(int).rename_axis("collectives issued by rank 0")
