"""k ranks against one process on the whole batch: the facts of the question, its faults, and the cases that go with
it.
"""

import dataclasses

import numpy
import pytest

import dpviz
from dpviz.experiments import equivalence
from dpviz.experiments.equivalence import Config
from dpviz.ranks.launch import launch


def facts(world_size=4, **fields):
    return launch(equivalence.experiment, Config(**fields), world_size=world_size).facts


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model", "data"), [("mlp", "digits"), ("mlp", "text"), ("transformer", "text"), ("transformer", "digits")]
)
def test_the_average_is_the_gradient_of_the_whole_batch(model, data, dtype):
    found = facts(model=model, data=data, dtype=dtype, accumulation_steps=2)
    assert found["gradients_equal"], found["error_by_tensor"]
    assert found["ranks_identical"]
    assert found["samples"] == 32


@pytest.mark.parametrize(
    ("world_size", "accumulation_steps", "micro_batch"), [(2, 1, 1), (3, 5, 2), (8, 2, 4), (5, 3, 7)]
)
def test_whatever_the_shape_of_the_batch(world_size, accumulation_steps, micro_batch):
    found = facts(
        world_size, accumulation_steps=accumulation_steps, micro_batch=micro_batch, dtype="float64", norm="layer"
    )
    assert found["max_rel_error"] < 1e-12


def test_the_gradients_before_the_all_reduce_differ():
    """Else an implementation that shards nothing, or gives every rank all the data, would pass everything above."""
    results = launch(equivalence.experiment, Config(dtype="float64"), world_size=4).results
    local = numpy.array([result["local"] for result in results])
    assert all(
        numpy.linalg.norm(local[i] - local[j]) > 0.1 * numpy.linalg.norm(local[i]) for i in range(4) for j in range(i)
    )


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_torchs_own_class_makes_the_same_trajectory(optimizer, steps):
    config = Config(dtype="float64", accumulation_steps=3, steps=steps, optimizer=optimizer)
    by_hand = launch(equivalence.experiment, config, world_size=4)
    torchs = launch(equivalence.experiment_with_ddp, config, world_size=4)
    dpviz.check_same_gradients(by_hand, torchs, rtol=1e-12)
    dpviz.check_same_trajectory(by_hand, torchs, atol=1e-12)
    counts = dpviz.collective_counts(by_hand=by_hand, ddp=torchs)["all_reduce"]
    assert counts["by_hand"] == 4 * steps  # a tensor each
    assert counts["ddp"] == steps  # one bucket, once for three micro-batches
    assert (by_hand.facts["all_reduces"], torchs.facts["all_reduces"]) == (4, 1)


def test_several_steps_equal_one_process():
    config = Config(dtype="float64", steps=5, optimizer="adamw", lr=0.01)
    four = launch(equivalence.experiment, config, world_size=4)
    one = launch(equivalence.experiment, dataclasses.replace(config, micro_batch=16), world_size=1)
    parameters = [run.frame().query("rank == 0")["parameters"].tolist() for run in (four, one)]
    assert numpy.abs(numpy.subtract(*parameters)).max() < 1e-12


class TestWhatBreaksIt:
    def test_forgetting_to_divide_by_k(self):
        found = facts(average=False, dtype="float64")
        assert abs(found["max_rel_error"] - 3.0) < 1e-6
        assert found["ranks_identical"]  # wrong alike on every rank: no comparison of ranks would notice

    def test_sgd_feels_it_and_adamw_does_not(self):
        assert facts(average=False, dtype="float64")["update_ratio"] == pytest.approx(4)
        assert facts(average=False, dtype="float64", optimizer="adamw")["update_ratio"] == pytest.approx(1, rel=1e-3)

    def test_a_local_sum_is_k_times_too_small_or_right_without_the_division(self):
        assert facts(reduction="sum", dtype="float64")["max_rel_error"] == pytest.approx(0.75)
        assert facts(reduction="sum", average=False, dtype="float64", accumulation_steps=3)["gradients_equal"]

    @pytest.mark.parametrize("all_reduce", ["none", "after_step"])
    def test_without_the_all_reduce_or_with_one_too_late_the_ranks_part(self, all_reduce):
        found = facts(all_reduce=all_reduce, steps=3)
        assert not found["ranks_identical"]
        assert found["first_divergent_step"] == 0
        assert not found["gradients_equal"]
        assert found["all_reduces"] == (0 if all_reduce == "none" else 4)

    def test_batch_norm_ends_the_equivalence_and_layer_norm_does_not(self):
        assert facts(norm="layer", dtype="float64")["max_rel_error"] < 1e-12
        assert facts(norm="batch", dtype="float64")["max_rel_error"] > 0.1

    @pytest.mark.parametrize("experiment", [equivalence.experiment, equivalence.experiment_with_ddp])
    @pytest.mark.parametrize("broadcast_buffers", [True, False])
    def test_buffers_agree_in_each_forward_if_they_are_broadcast_and_differ_after_it(
        self, broadcast_buffers, experiment
    ):
        found = launch(
            experiment, Config(norm="batch", steps=3, broadcast_buffers=broadcast_buffers), world_size=4
        ).facts
        assert found["buffers_identical_in_forward"] is broadcast_buffers
        assert not found["buffers_identical"]
        assert found["ranks_identical"]


class TestBytes:
    @pytest.mark.parametrize("world_size", [2, 3, 4, 8])
    @pytest.mark.parametrize(
        "fields",
        [{}, {"dtype": "float64", "accumulation_steps": 2}, {"norm": "batch"}, {"model": "transformer", "steps": 3}],
    )
    def test_measured_bytes_are_those_of_the_formula(self, world_size, fields):
        found = facts(world_size, **fields)
        for sent, predicted in zip(found["wire_bytes"], found["wire_bytes_predicted"], strict=True):
            assert abs(sent - predicted) <= 0.005 * predicted

    def test_the_formula_is_the_rings_and_the_framing_is_apart(self):
        found = facts(dtype="float64", accumulation_steps=2)
        for predicted, framing in zip(found["wire_bytes_predicted"], found["framing_bytes_predicted"], strict=True):
            assert predicted - framing == pytest.approx(1.5 * found["gradient_bytes"])

    def test_they_do_not_depend_on_the_batch(self):
        assert facts(micro_batch=1)["wire_bytes"] == facts(micro_batch=32, accumulation_steps=4)["wire_bytes"]

    def test_no_all_reduce_sends_nothing(self):
        assert facts(all_reduce="none")["wire_bytes"] == [0] * 4

    def test_where_the_kernel_does_not_tell_they_are_counted_and_it_says_so(self, monkeypatch):
        monkeypatch.setenv("DPVIZ_WIRE", "counted")
        run = launch(equivalence.experiment, Config(norm="batch", steps=2), world_size=4)
        assert run.environment.wire == "counted, not measured"
        assert run.facts["framing_bytes_predicted"] == [0] * 4
        for sent, predicted in zip(run.facts["wire_bytes"], run.facts["wire_bytes_predicted"], strict=True):
            assert sent == pytest.approx(predicted, abs=2)


def test_case_1_a_local_sum_under_ddp():
    """y = w * x, rank 0 holds x = 1, 2, 3 and rank 1 x = 4, 5, 6."""
    case = {"world_size": 2, "model": "weight", "data": "count", "micro_batch": 3, "dtype": "float64"}
    summed = facts(reduction="sum", **case)
    assert (summed["gradient_norm"], summed["reference_norm"]) == (10.5, 21.0)
    averaged = facts(reduction="mean", **case)
    assert (averaged["gradient_norm"], averaged["reference_norm"]) == (3.5, 3.5)
    assert facts(reduction="sum", average=False, **case)["gradient_norm"] == 21.0


def test_equal_facts_here_on_the_pool_and_by_name():
    config = Config(dtype="float64", accumulation_steps=2)
    by_name = launch("dpviz.experiments.equivalence:experiment", config, world_size=2)
    assert by_name.experiment == "equivalence"
    assert by_name.facts == launch(equivalence.experiment, config, world_size=2).facts
    alone = launch(equivalence.experiment, config, world_size=1)
    assert alone.facts["gradients_equal"]
    assert alone.facts["wire_bytes"] == [0]


def test_a_wrong_combination_is_a_sentence():
    with pytest.raises(ValueError, match="weight goes with count"):
        Config(model="weight")
    with pytest.raises(ValueError, match="micro_batch is 1, but batch norm needs more"):
        Config(norm="batch", micro_batch=1)
    with pytest.raises(ValueError, match="no hidden layer"):
        Config(model="weight", data="count", norm="layer")
