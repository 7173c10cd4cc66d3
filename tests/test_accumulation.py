"""Accumulation: one all-reduce is neither enough nor needed, and what K and recomputation cost. Cases 6, 11 and 12."""

import pytest
import torch

from dpviz.experiments.accumulation import experiment
from dpviz.measure.memory import kept_for_backward
from dpviz.questions.accumulation import Config
from dpviz.ranks.launch import launch


def facts(world_size=None, **fields):
    config = Config(**{"dtype": "float64", **fields})
    return launch(experiment, config, world_size=world_size or config.implied_world_size() or 4).facts


@pytest.mark.parametrize(
    ("sync", "all_reduces", "right"),
    [
        ("last", 1, True),
        ("every", 4, True),
        ("backward_only", 4, True),
        ("flag_after_forward", 1, False),
        ("off_by_one", 1, False),
    ],
)
def test_the_count_of_all_reduces_does_not_tell_whether_it_is_right(sync, all_reduces, right):
    found = facts(sync=sync, batches=8)
    assert found["all_reduces"] == all_reduces
    assert found["ranks_identical"] is right
    assert (found["gradient_error"] < 1e-12) is found["gradients_equal"] is right
    assert (found["gradient_scale"] == pytest.approx(1, rel=1e-12)) is right
    assert found["first_divergent_step"] == (None if right else 0)


@pytest.mark.parametrize(
    ("sync", "after"),
    [
        ("last", [0, 0, 0, 1]),
        ("every", [1, 1, 1, 1]),
        ("backward_only", [1, 1, 1, 1]),
        ("flag_after_forward", [1, 0, 0, 0]),
        ("off_by_one", [1, 0, 0, 0]),
    ],
)
def test_it_is_known_after_which_micro_batch_the_ranks_communicate(sync, after):
    run = launch(experiment, Config(sync=sync), world_size=2)
    assert run.facts["all_reduces_by_micro_batch"] == after
    assert [[step.values["all_reduces_by_micro_batch"] for step in records] for records in run.records] == 2 * [
        [after] * 2
    ]


def test_ranks_start_together_and_one_update_begins_where_the_other_ended():
    run = launch(experiment, Config(sync="off_by_one"), world_size=2)
    (one, two), (other, _) = ([step.values for step in records] for records in run.records)
    assert one["parameters_before"] == other["parameters_before"]
    assert one["parameters"] == two["parameters_before"] != other["parameters"]


@pytest.mark.parametrize(("steps", "batches", "updates"), [(8, 0, 2), (8, 8, 1), (4, 125, 32)])
def test_there_are_two_full_windows_unless_it_is_said_how_many_micro_batches(steps, batches, updates):
    config = Config(accumulation_steps=steps, batches=batches)
    assert config.updates() == updates and config.micro_batches() == (batches or 16)


@pytest.mark.parametrize("model", ["mlp", "transformer"])
@pytest.mark.parametrize("data", ["digits", "text"])
def test_four_micro_batches_are_one_batch(model, data):
    found = facts(model=model, data=data, batches=8)
    assert found["gradient_error"] < 1e-12
    assert found["gradient_scale_by_update"] == pytest.approx([1, 1], rel=1e-12)


class TestBytes:
    def test_those_of_one_all_reduce_whatever_k(self):
        sent = [facts(accumulation_steps=k, batches=k)["wire_bytes"] for k in (1, 2, 8)]
        assert sent[0] == sent[1] == sent[2]

    def test_k_times_as_many_with_an_all_reduce_each(self):
        once = facts(sync="last")["wire_bytes"]
        assert facts(sync="every")["wire_bytes"] == [4 * sent for sent in once]

    @pytest.mark.parametrize("sync", ["last", "every"])
    def test_as_the_formula_says(self, sync):
        found = facts(sync=sync, model="transformer")
        assert found["wire_bytes"] == pytest.approx(found["wire_bytes_predicted"], rel=0.005)

    def test_counted_where_the_kernel_does_not_tell(self, monkeypatch):
        monkeypatch.setenv("DPVIZ_WIRE", "counted")
        found = facts(sync="every")
        assert found["wire_bytes"] == pytest.approx(found["wire_bytes_predicted"], abs=8)


class TestCases:
    def test_6_the_short_last_window_divided_by_k(self):
        found = facts(2, batches=125, micro_batch=1)
        assert found["updates"] == 32
        assert found["gradient_scale_by_update"] == pytest.approx([1.0] * 31 + [0.25])
        right = facts(2, batches=125, micro_batch=1, scale="by_window")
        assert right["gradient_scale_by_update"] == pytest.approx([1.0] * 32)
        assert right["gradients_equal"] and not found["gradients_equal"]

    def test_11_the_flag_set_between_forward_and_backward(self):
        inputs = [[0, 1, 2, 3], [10, 11, 12, 13]]
        wrong = facts(sync="flag_after_forward", inputs=inputs)
        assert wrong["gradients"] == [2.75, 10.25]
        assert wrong["all_reduces"] == 1
        assert facts(sync="last", inputs=inputs)["gradients"] == [6.5, 6.5]

    def test_12_off_by_one(self):
        case = {"accumulation_steps": 2, "scale": "none", "inputs": [[1, 2], [3, 5]]}
        assert facts(sync="off_by_one", **case)["gradients"] == [4.0, 7.0]
        assert facts(sync="last", **case)["gradients"] == [5.5, 5.5]


def test_without_the_division_the_gradient_is_k_times_too_large():
    assert facts(scale="none")["gradient_scale"] == pytest.approx(4)


def test_adamw_does_not_feel_that_the_division_is_missing():
    sgd, adamw = ([facts(optimizer=o, scale=s)["update_norm"] for s in ("by_k", "none")] for o in ("sgd", "adamw"))
    assert sgd[1] / sgd[0] == pytest.approx(4)
    assert adamw[1] / adamw[0] == pytest.approx(1, rel=1e-3)


def test_the_worked_example_needs_32_micro_batches():
    """256 sequences on 4 ranks that hold 2 each: K = 32, one all-reduce."""
    found = facts(4, accumulation_steps=256 // (4 * 2), micro_batch=2, batches=32)
    assert found["samples"] == 256
    assert found["all_reduces"] == 1


class TestActivations:
    def test_they_grow_with_the_micro_batch_and_not_with_k(self):
        by_batch = [facts(2, micro_batch=b)["activation_bytes"][0] for b in (4, 8, 16)]
        assert by_batch[2] - by_batch[1] == 2 * (by_batch[1] - by_batch[0]) > 0
        assert facts(2, accumulation_steps=8, batches=8)["activation_bytes"][0] == by_batch[0]

    def test_a_window_at_once_keeps_k_times_as_much(self):
        found = facts(2, dtype="float32")["activations"]
        assert found["window_kept"] == pytest.approx(4 * found["micro_batch_kept"], rel=0.02)
        assert found["micro_batch_recomputed"] < found["micro_batch_kept"]
        set_otherwise = facts(2, dtype="float32", recompute=True)
        assert set_otherwise["activations"] == found
        assert set_otherwise["activation_bytes"][0] == found["micro_batch_recomputed"]

    def test_a_large_window_is_not_tried(self):
        found = facts(2, micro_batch=256, accumulation_steps=16, batches=16)["activations"]
        assert found["window_kept"] is None and found["micro_batch_kept"] > 0

    def test_the_model_state_does_not_know_k(self):
        for optimizer, each in (("sgd", 8), ("adamw", 16)):
            few, many = (facts(2, dtype="float32", accumulation_steps=k, optimizer=optimizer) for k in (1, 8))
            assert few["model_state_bytes"] == many["model_state_bytes"]
            parameters = few["gradient_bytes"] // 4
            assert few["model_state_bytes"][0] == pytest.approx(each * parameters, abs=16)

    @pytest.mark.parametrize("model", ["mlp", "transformer"])
    def test_recomputation_lowers_them_and_changes_no_gradient(self, model):
        kept, again = facts(2, model=model), facts(2, model=model, recompute=True)
        assert again["activation_bytes"][0] < 0.2 * kept["activation_bytes"][0]
        assert again["gradient_error"] < 1e-12

    def test_what_is_kept_is_what_autograd_saves(self):
        x, w = torch.randn(10, 20), torch.randn(20, 30, requires_grad=True)
        with kept_for_backward(without=[x, w]) as kept:
            (x @ w).exp()  # saves x and w, which are there anyway, and its own result
        assert kept.bytes == 10 * 30 * 4
        with kept_for_backward(without=[]) as kept:
            (x @ w).exp()
        assert kept.bytes == (10 * 20 + 10 * 30) * 4  # w's gradient needs x; x has none, so w is not kept


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"accumulation_steps": 0}, "accumulation_steps is 0"),
        ({"inputs": [[1, 2], [3]]}, "differ in length"),
        ({"inputs": [[1]], "recompute": True}, "recompute needs a model"),
        ({"sync": "first"}, "one of last, every"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)
