"""Every fault of the optimizer's semantics, on real ranks: when they part, which, and what sees it. Cases 17, 19."""

import pytest

from dpviz.experiments.optimizer_state import experiment
from dpviz.questions.optimizer_state import FAULTS, Config
from dpviz.ranks.launch import launch

EVERY = [0, 1, 2, 3]
EXPECTED = {
    # fault: first divergent step, divergent ranks, a check that must see it (fault rank 2, fault step 3, k = 4)
    "none": (None, [], None),
    "no_all_reduce": (3, EVERY, "gradients"),
    "skipped_step": (3, [2], "step"),
    "lr_differs": (3, [2], "lr"),
    "overflow_on_one_rank": (3, [2], "scaler"),
    "unchecked_infinity": (3, EVERY, "norm"),
    "token_weights_differ": (3, [2], "tokens"),
    "left_out_collective": (3, [2], "timeout"),
    "stale_checkpoint": (3, [2], "parameters"),
    "resume_without_optimizer": (3, [2], "optimizer"),
    "resume_without_scaler": (3, [2], "scaler"),
    "scheduler_steps_k_times": (0, EVERY, "lr"),
    "schedule_by_own_tokens": (3, [2], "lr"),
    "edited_parameter": (3, [2], "parameters"),
    "different_init": (0, [2], "parameters"),
    "same_dropout_mask": (0, EVERY, "dropout"),
}


def facts(fault, **fields):
    return launch(experiment, Config(fault=fault, fault_rank=2, **fields), world_size=4).facts


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen_when_and_where_it_happens(fault):
    found = facts(fault)
    step, ranks, check = EXPECTED[fault]
    assert (found["first_divergent_step"], found["divergent_ranks"]) == (step, ranks)
    assert check is None or check in found["detected_by"]


@pytest.mark.parametrize("fault", ["token_weights_differ", "scheduler_steps_k_times", "same_dropout_mask"])
def test_some_faults_leave_the_ranks_equal_so_that_comparing_parameters_finds_nothing(fault):
    found = facts(fault)
    assert max(found["parameter_spread"]) == 0
    assert "parameters" not in found["detected_by"]


def test_17_a_schedule_stepped_k_times_climbs_again():
    found = facts("scheduler_steps_k_times", steps=100, lr=1.0, optimizer="sgd")
    assert [found["learning_rates"][i] for i in (25, 50, 100)] == pytest.approx([0, 1, 1], abs=1e-6)
    right = facts("none", steps=100, lr=1.0, optimizer="sgd")
    assert [right["learning_rates"][i] for i in (25, 50, 100)] == pytest.approx([0.854, 0.5, 0], abs=5e-4)
    assert right["learning_rates"] == pytest.approx(right["learning_rates_expected"], abs=1e-9)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_19_an_edited_parameter_stays_apart_for_ever(optimizer):
    found = facts("edited_parameter", optimizer=optimizer)
    assert found["parameter_spread"] == pytest.approx([0, 0, 0, 1, 1, 1, 1, 1], abs=1e-6)
    assert found["detected_by"] == ["parameters"]  # gradients agree, and will always


def test_the_differences_are_listed_step_by_step():
    found = facts("skipped_step")
    assert [bool(one) for one in found["differences"]] == [False] * 3 + [True] * 5
    assert found["differences"][3] == dict.fromkeys(found["detected_by"], [2])


def test_a_left_out_collective_is_noticed_only_when_somebody_waits_at_the_end():
    found = facts("left_out_collective")
    assert found["first_divergent_step"] == 3
    assert found["differences"] == [{}] * 7 + [{"timeout": [2]}]


def test_no_fault_prints_anything():
    """A rank's stderr is shown: torch's remark about reading a checkpoint alone is expected, and kept back."""
    for fault in ("stale_checkpoint", "resume_without_optimizer"):
        run = launch(experiment, Config(fault=fault, fault_rank=2), world_size=4)
        assert run.prints == [[], [], [], []]


def test_the_next_launch_is_right_after_a_left_out_collective():
    facts("left_out_collective")
    assert facts("none")["first_divergent_step"] is None


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"fault": "skipped_step", "fault_step": 8}, "numbered from 0. Give at most 7"),
        ({"fault": "stale_checkpoint", "fault_step": 1}, "needs two updates before it"),
        ({"fault": "skiped_step"}, "Did you mean skipped_step?"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)


def test_a_fault_rank_that_does_not_exist_is_a_sentence():
    with pytest.raises(ValueError, match="fault_rank is 2, but there are 2 ranks, numbered from 0"):
        launch(experiment, Config(fault="skipped_step", fault_rank=2), world_size=2)
