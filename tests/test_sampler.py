"""torch's DistributedSampler on real ranks: what it repeats, what it leaves out, and what set_epoch is for. Case 16."""

import pytest

from dpviz.experiments.sampler import experiment
from dpviz.questions.sampler import Config
from dpviz.ranks.launch import launch


def facts(world_size, **fields):
    return launch(experiment, Config(**fields), world_size=world_size).facts


def test_16_it_pads_by_repeating():
    assert facts(2, dataset_size=21)["samples"] == 22
    found = facts(4, dataset_size=10)
    assert found["samples_per_rank"] == [3] * 4
    assert found["samples"] == 12
    assert len(found["repeated"]) == 2 and found["missing"] == []
    assert found["accuracy_read"] == pytest.approx(1 / 3)
    assert found["accuracy_true"] == 0.2


def test_drop_last_leaves_samples_out_and_may_leave_none():
    found = facts(4, dataset_size=10, drop_last=True)
    assert (found["samples"], len(found["missing"]), found["repeated"]) == (8, 2, [])
    none = facts(8, dataset_size=5, drop_last=True)
    assert none["samples_per_rank"] == [0] * 8
    assert none["missing"] == [0, 1, 2, 3, 4]


def test_fewer_samples_than_ranks_repeat():
    found = facts(8, dataset_size=5)
    assert found["samples"] == 8 and len(found["repeated"]) == 3


def test_without_set_epoch_every_epoch_has_the_same_order():
    assert facts(2, dataset_size=100, set_epoch="no")["same_order_again"]
    assert not facts(2, dataset_size=100)["same_order_again"]


def test_mismatched_epochs_repeat_some_samples_and_miss_others():
    found = facts(2, dataset_size=100, set_epoch="mismatched")
    assert found["samples"] == 100
    assert len(found["repeated"]) == len(found["missing"]) > 10
    right = facts(2, dataset_size=100)
    assert right["repeated"] == right["missing"] == []
