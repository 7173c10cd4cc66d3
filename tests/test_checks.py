"""The checks of lessons go red when they should."""

import dataclasses

import pytest

import dpviz
from dpviz.experiments.equivalence import Config, experiment
from dpviz.ranks.launch import launch


@pytest.fixture(scope="module")
def run():
    return launch(experiment, Config(dtype="float64", steps=3), world_size=2)


def test_the_same_is_the_same(run):
    assert (
        dpviz.check_same_gradients(run, run)
        == "Same gradient on every rank of both runs (relative difference below 1e-06)."
    )
    assert (
        dpviz.check_same_trajectory(run, run) == "Same trajectory over 3 steps on every rank (difference below 1e-06)."
    )


def test_a_forgotten_division_is_seen(run):
    other = launch(experiment, Config(dtype="float64", steps=3, average=False), world_size=2)
    with pytest.raises(AssertionError, match="The gradients differ: largest relative difference 1.0e"):
        dpviz.check_same_gradients(run, other)
    with pytest.raises(AssertionError, match="The trajectories part"):
        dpviz.check_same_trajectory(run, other)


def test_one_rank_that_differs_is_seen(run):
    results = [run.results[0], {**run.results[1], "reduced": run.results[1]["reduced"] * 1.001}]
    with pytest.raises(AssertionError, match="differ"):
        dpviz.check_same_gradients(run, dataclasses.replace(run, results=results))


def test_runs_of_different_length_cannot_be_compared(run):
    with pytest.raises(AssertionError, match="6 and 2 records"):
        dpviz.check_same_trajectory(run, launch(experiment, Config(dtype="float64"), world_size=2))


def test_counts_are_a_table(run):
    assert dpviz.collective_counts(mine=run).loc["mine", "all_reduce"] == 12
