"""The planner: the courses' worked numbers, a choice that follows their rule, and sentences for what cannot be."""

import json

import pytest

from dpviz.__main__ import main
from dpviz.planner import Config
from dpviz.theory import traffic


def answer(capsys, *arguments):
    assert main(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def column(found, name):
    return [stage[name] for stage in found["stages"]]


def test_7e9_parameters_on_8_ranks(capsys):
    given = "--params 7e9 --world-size 8 --memory-gb 80 --activations-gb 40 --link-gbps 400"
    found = answer(capsys, *given.split())
    assert column(found, "stage") == [0, 1, 2, 3]
    assert column(found, "model_state_gb") == [112.0, 38.5, 26.25, 14.0]
    assert column(found, "traffic_gb") == [24.5, 24.5, 24.5, 36.75]  # ZeRO-2 does not halve it: not 12.25
    assert column(found, "communication_s") == pytest.approx([0.49, 0.49, 0.49, 0.735])
    assert column(found, "fits") == [False, True, True, True]
    assert found["choice"] == 2 and "ZeRO-1 would leave 1.5 GB free" in found["why"]
    assert found["wasted_gb"] == 784


def test_13e9_parameters_with_40_gb_of_activations_leave_one_stage(capsys):
    found = answer(capsys, "--params", "13e9", "--world-size", "8", "--memory-gb", "80", "--activations-gb", "40")
    assert column(found, "model_state_gb") == [208.0, 71.5, 48.75, 26.0]
    assert column(found, "fits") == [False, False, False, True]
    assert found["choice"] == 3
    assert "reshard_after_forward=True" in found["settings"]["torch"]
    assert json.loads(found["settings"]["deepspeed"])["zero_optimization"]["stage"] == 3


def test_5e12_parameters_are_80_tb():
    assert Config(params=5e12, world_size=1).plan().stages[0].model_state_gb == 80_000


def test_what_fits_is_not_divided():
    plan = Config(params=1e9).plan()
    assert plan.choice == 0 and all(stage.fits for stage in plan.stages)


def test_the_only_stage_that_fits_is_taken_though_it_is_tight():
    plan = Config(params=13e9, activations_gb=53).plan()
    assert plan.choice == 3 and "run out of memory" in plan.why


def test_headroom_counts():
    assert Config(params=7e9, activations_gb=40).plan().stages[1].fits
    assert not Config(params=7e9, activations_gb=40, headroom_gb=2).plan().stages[1].fits


def test_where_nothing_fits_the_remedies_are_priced():
    plan = Config(params=70e9).plan()
    assert plan.choice is None and plan.smallest_world_size == 14
    assert "It would fit on 14 ranks" in plan.why and "frees 105 GB, which is enough" in plan.why
    assert Config(params=70e9).answer()["settings"] == {}
    full = Config(params=7e9, activations_gb=80).plan()
    assert full.smallest_world_size is None and "recompute them" in full.why


def test_accumulation_multiplies_the_traffic_of_the_stages_that_divide_gradients():
    """In units of P at k = 4, K = 4: 1.5, 1.5, 3.75 and 9; reduced once 1.5 and 6.75."""
    plan = Config(params=1e9, world_size=4, accumulation_steps=4).plan()
    assert [stage.traffic_gb / 2 for stage in plan.stages] == [1.5, 1.5, 3.75, 9.0]

    def units(**how):
        return traffic.zero_bytes(4000, 4, accumulation_steps=4, **how) / 4000

    assert units(stage=2, reduce="last") == 1.5 and units(stage=3, reduce="last") == 6.75
    assert units(stage=1, gradients="all_reduce") == 2.25


def test_notes_name_the_bottleneck_and_the_batch():
    slow = Config(params=7e9, link_gbps=1.0, tokens=64, activations_gb=40, accumulation_steps=2).plan()
    assert any("The link is the bottleneck" in note for note in slow.notes)
    assert any("reduces gradients at every micro-batch" in note for note in slow.notes)
    large = Config(largest_batch_tokens=1e4).plan()
    assert large.global_batch_tokens == 65_536
    assert any("The global batch is 65,536 tokens" in note for note in large.notes)


def test_time_is_between_all_hidden_and_nothing_hidden():
    stage = Config().plan().stages[0]
    assert stage.compute_s == pytest.approx(6 * 7e9 * 8192 / 1e14)
    assert stage.step_s == max(stage.compute_s, stage.communication_s)
    assert stage.step_exposed_s == stage.compute_s + stage.communication_s


def test_the_table_says_that_it_is_modelled(capsys):
    assert main(["plan"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Modelled") and "ZeRO-3" in said and "choice: ZeRO-1" in said


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--params", "0"], "params is 0.0, but it must be a number from 1 to"),
        (["--world-size", "0"], "world_size is 0, but it must be a whole number from 1 to"),
        (["--memory-gb=-80"], "memory_gb is -80.0, but"),
        (["--params", "nan"], "params is nan, but"),
        (["--parms", "7e9"], "there is no field named 'parms' here"),
        (["7e9"], "'7e9' is not an option"),
        (["--stage", "9"], "there is no field named 'stage' here"),
    ],
)
def test_wrong_values_are_sentences(arguments, sentence, capsys):
    assert main(["plan", *arguments]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(sentence) and not said.out
