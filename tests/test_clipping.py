"""Clipping at the wrong place: cases 8, 9 and 10 to the digits, and a real model."""

import pytest

from dpviz.experiments.clipping import experiment
from dpviz.questions.clipping import Config
from dpviz.ranks.launch import launch


def facts(order, gradients=None, world_size=None, **fields):
    return launch(experiment, Config(order=order, gradients=gradients, **fields), world_size=world_size).facts


def test_8_clip_then_average():
    found = facts("clip_then_average", [[30, 40], [0.3, -0.4]])
    assert found["update"] == pytest.approx([0.45, 0.2], abs=1e-6)
    assert found["norm"] == pytest.approx(0.4924, abs=5e-5)
    assert found["reference"] == pytest.approx([0.607673, 0.794187], abs=1e-6)
    assert found["reference_norm"] == pytest.approx(1, abs=1e-6)
    other = facts("clip_then_average", [[3, 0], [-3, 0.4]])
    assert other["update"] == pytest.approx([0.0044, 0.0661], abs=5e-5)
    assert other["reference"] == pytest.approx([0, 0.2], abs=1e-12)
    assert facts("average_then_clip", [[3, 0], [-3, 0.4]])["update"] == other["reference"]


def test_9_clipping_the_scaled_gradient():
    found = facts("clip_before_unscale", [[0.3, 0.4]], loss_scale=65536)
    assert found["norm"] == pytest.approx(1.526e-5, abs=5e-9)
    assert found["reference_norm"] == pytest.approx(0.5)
    assert found["angle_degrees"] == pytest.approx(
        0, abs=1e-4
    )  # the direction is right, and the length 32,768 times too small


def test_10_each_shard_by_its_own_norm():
    found = facts("clip_each_shard", [[3], [4]])
    assert found["update"] == pytest.approx([1, 1], abs=1e-6)
    assert found["reference"] == pytest.approx([0.6, 0.8], abs=1e-6)
    uneven = facts("clip_each_shard", [[3, 4], [12]])
    assert uneven["update"] == pytest.approx([0.6, 0.8, 1], abs=1e-6)
    assert uneven["reference"] == pytest.approx([3 / 13, 4 / 13, 12 / 13], abs=1e-6)


@pytest.mark.parametrize(
    "order", ["clip_then_average", "clip_each_micro_batch", "clip_each_shard", "clip_before_unscale"]
)
def test_every_other_order_gives_a_real_model_another_update(order):
    found = facts(order, world_size=4, max_norm=0.5)
    assert found["ranks_identical"]  # all alike and all wrong: comparing ranks would not find it
    assert abs(found["norm"] / found["reference_norm"] - 1) > 0.01 or found["angle_degrees"] > 0.5


@pytest.mark.parametrize("gradients", [[[3], [4]], [[3, 4], [12]], None])
def test_shards_clipped_by_the_norm_of_the_whole_are_the_reference(gradients):
    found = facts("clip_shards_together", gradients, world_size=None if gradients else 4, max_norm=0.5)
    assert found["angle_degrees"] == pytest.approx(0, abs=1e-5)
    assert found["norm"] == pytest.approx(found["reference_norm"], rel=1e-9) == pytest.approx(0.5, rel=1e-5)


def test_the_reference_is_one_process_on_the_whole_batch():
    """Two ranks' micro-batches are four of one rank: its average is theirs."""
    two = facts("average_then_clip", world_size=2, micro_batch=2, max_norm=0.5)
    one = facts("average_then_clip", world_size=1, micro_batch=4, max_norm=0.5)
    assert two["norm"] == pytest.approx(one["norm"], rel=1e-12) == pytest.approx(0.5, rel=1e-5)
    unclipped = [facts("average_then_clip", world_size=k, micro_batch=8 // k, max_norm=1e9)["norm"] for k in (1, 2, 4)]
    assert unclipped == pytest.approx([unclipped[0]] * 3, rel=1e-12)


def test_a_bound_of_zero_leaves_no_update():
    found = facts("average_then_clip", [[3, 4], [1, 0]], max_norm=0)
    assert (found["norm"], found["angle_degrees"]) == (0, None)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"max_norm": -1}, "max_norm is -1, but it must be a number from 0"),
        ({"gradients": [[1, 2], [3]]}, "differ in length"),
        ({"gradients": [[float("inf")]]}, "gradients is"),
        ({"order": "first"}, "one of average_then_clip"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)
