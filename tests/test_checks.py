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
    with pytest.raises(AssertionError, match="2 and 2 ranks, 6 and 2 records"):
        dpviz.check_same_trajectory(run, launch(experiment, Config(dtype="float64"), world_size=2))


def test_counts_are_a_table(run):
    assert dpviz.collective_counts(mine=run).loc["mine", "all_reduce"] == 12


def test_a_loss_that_is_no_number_is_no_agreement(run):
    records = [[dataclasses.replace(step, loss=float("nan")) for step in of_rank] for of_rank in run.records]
    with pytest.raises(AssertionError, match="largest difference nan"):
        dpviz.check_same_trajectory(run, dataclasses.replace(run, records=records))


def test_runs_of_other_ranks_with_as_many_records_cannot_be_compared():
    two, four = (launch(experiment, Config(steps=steps), world_size=size) for size, steps in ((2, 4), (4, 2)))
    with pytest.raises(AssertionError, match="2 and 4 ranks, 8 and 8 records"):
        dpviz.check_same_trajectory(two, four)


def test_more_collectives_than_are_kept_are_not_counted():
    long = launch(experiment, Config(steps=50, norm="batch"), world_size=2)
    with pytest.raises(ValueError, match="more collectives than are kept"):
        dpviz.collective_counts(long=long)
