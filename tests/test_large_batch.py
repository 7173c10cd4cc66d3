"""Large batches: equal ones train alike, noise falls as the root of the batch, and linear scaling has an end."""

import pytest

from dpviz.experiments.large_batch import experiment
from dpviz.questions.large_batch import Config, lr_at
from dpviz.ranks.launch import launch


def facts(world_size=4, **fields):
    return launch(experiment, Config(**fields), world_size=world_size).facts


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_equal_global_batches_by_k_by_big_k_and_by_b_train_alike(optimizer):
    ways = [(4, 1, 8), (2, 2, 8), (1, 1, 32), (2, 4, 4)]
    runs = [
        facts(k, accumulation_steps=big_k, micro_batch=b, dtype="float64", steps=20, optimizer=optimizer, base_lr=0.01)
        for k, big_k, b in ways
    ]
    assert {run["global_batch"] for run in runs} == {32}
    for run in runs[1:]:
        assert run["losses"] == pytest.approx(runs[0]["losses"], abs=1e-9)


@pytest.mark.parametrize(("model", "data"), [("mlp", "digits"), ("transformer", "text")])
def test_noise_falls_as_one_over_the_root_of_the_batch(model, data):
    found = facts(2, model=model, data=data, steps=1)
    assert -0.6 < found["noise_exponent"] < -0.4
    assert list(found["gradient_noise"]) == [4, 8, 16, 32]
    assert found["noise_scale"] > 1


def test_linear_scaling_of_sgd_breaks_where_the_square_root_does_not():
    scaled = {"base_lr": 0.3, "target_loss": 0.5}
    small = facts(micro_batch=16, scaling="linear", **scaled)
    large = facts(micro_batch=64, scaling="linear", **scaled)
    root = facts(micro_batch=64, scaling="sqrt", **scaled)
    assert small["steps_to_target"] is not None
    assert large["steps_to_target"] is None or large["steps_to_target"] > small["steps_to_target"]
    assert root["steps_to_target"] < small["steps_to_target"]
    assert facts(micro_batch=128, scaling="linear", base_lr=2.0)["diverged"]


def test_real_training_learns():
    found = facts(optimizer="adamw", base_lr=0.01, micro_batch=16)
    assert found["final_loss"] < 0.3 < 2 < found["losses"][0]
    assert found["samples_to_target"] == found["steps_to_target"] * 64
    assert not found["diverged"]


def test_rules_and_warm_up():
    def rates(**fields):
        config = Config(base_lr=0.1, base_batch=16, steps=10, **fields)
        return [lr_at(config, step, 64) for step in range(10)]

    assert rates(scaling="none") == [0.1] * 10
    assert rates(scaling="linear") == pytest.approx([0.4] * 10)
    assert rates(scaling="sqrt") == pytest.approx([0.2] * 10)
    assert rates(scaling="linear", warmup_fraction=0.4)[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_global_batch_that_is_too_large_is_a_sentence():
    with pytest.raises(ValueError, match="the global batch would be 65536"):
        launch(experiment, Config(accumulation_steps=64, micro_batch=256), world_size=4)
