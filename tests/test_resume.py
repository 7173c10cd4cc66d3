"""Resuming from a real checkpoint: on another number of ranks the run goes on as before, without a part it does not."""

import pytest

from dpviz.experiments.resume import experiment
from dpviz.questions.resume import Config
from dpviz.ranks.launch import launch


def facts(world_size=4, **fields):
    return launch(experiment, Config(**fields), world_size=world_size).facts


@pytest.mark.parametrize("resume_world_size", [4, 2, 1])
def test_a_checkpoint_of_4_ranks_goes_on_with_fewer(resume_world_size):
    found = facts(resume_world_size=resume_world_size)
    assert found["max_difference"] < 1e-12
    assert found["losses"][-1] < found["losses"][0]


@pytest.mark.parametrize(
    ("without", "parts_at"),
    [("optimizer", 7), ("scheduler", 7), ("data_position", 6)],  # a moment or a rate shows after the first update
)
def test_without_a_part_of_it_the_run_goes_elsewhere(without, parts_at):
    found = facts(without=without)
    assert found["first_divergent_step"] == parts_at
    assert found["max_difference"] > 1e-3


def test_dropout_needs_the_random_state_and_nothing_else_here_does():
    same_size = {"resume_world_size": 4, "dropout": 0.3}
    assert facts(**same_size)["max_difference"] < 1e-12
    assert facts(**same_size, without="rng")["first_divergent_step"] == 6
    assert facts(without="rng")["max_difference"] < 1e-12


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"global_batch": 30}, "does not divide by 4"),
        ({"resume_world_size": 8}, "resume_world_size is 8, but there are 4 ranks"),
        ({"stop_after": 16}, "must come before the end"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        facts(**fields)
