"""The contract: every fault of optimizer_state is found by what a run put on record, a clean run breaks nothing."""

import copy
import json
import os
import random
from pathlib import Path

import jsonschema
import pytest
import torch

import dpviz
from dpviz import questions
from dpviz.contract import document
from dpviz.experiments.contract import Config, experiment
from dpviz.questions.optimizer_state import BEFORE, FAULTS
from dpviz.ranks.launch import launch
from dpviz.records import Collective

TIMES = 20 if os.environ.get("CI") else 1  # how often each fault is hidden, each time elsewhere
FIRST = {  # fault: the check that must name it first, whether on every rank, whether from the first step on
    "no_all_reduce": ("gradients", "every rank", "then"),
    "skipped_step": ("step", "one rank", "then"),
    "lr_differs": ("lr", "one rank", "then"),
    "overflow_on_one_rank": ("scaler", "one rank", "then"),
    "unchecked_infinity": ("norm", "every rank", "then"),
    "token_weights_differ": ("tokens", "one rank", "then"),
    "left_out_collective": ("failure", "one rank", "then"),
    "stale_checkpoint": ("checkpoint", "one rank", "then"),
    "resume_without_optimizer": ("checkpoint", "one rank", "then"),
    "resume_without_scaler": ("checkpoint", "one rank", "then"),
    "scheduler_steps_k_times": ("lr", "every rank", "at once"),
    "schedule_by_own_tokens": ("lr", "one rank", "then"),
    "edited_parameter": (("probe", "checksum"), "one rank", "then"),  # a probe may hit the one parameter
    "different_init": ("initial", "one rank", "at once"),
    "same_dropout_mask": ("dropout", "every rank", "at once"),
}


def hidden(fault, chance):
    """A Config with this fault at a place that chance decides, and a world size in which a majority can be right."""
    k, steps = chance.randint(3, 5), chance.randint(5, 9)
    step = chance.randint(max(BEFORE.get(fault, (0,))[0], 0), steps - 2)
    return Config(
        fault=fault, fault_rank=chance.randrange(k), fault_step=step, steps=steps, seed=chance.randrange(1000)
    ), k


@pytest.mark.parametrize("fault", FIRST)
def test_each_fault_is_found_with_its_rank_and_its_step(fault):
    chance = random.Random(fault)
    checks, where, when = FIRST[fault]
    for _ in range(TIMES):
        config, k = hidden(fault, chance)
        first, *_ = dpviz.check_contract(launch(experiment, config, world_size=k))
        assert first.check in checks, (config, first)
        assert first.ranks == ([config.fault_rank] if where == "one rank" else list(range(k))), (config, first)
        assert first.step == (config.fault_step if when == "then" else 0), (config, first)


def test_each_fault_is_expected():
    assert {*FIRST, "none"} == set(FAULTS)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_clean_run_breaks_nothing_and_everything_is_checked(world_size):
    chance = random.Random(world_size)
    for _ in range(TIMES):
        config = Config(seed=chance.randrange(1000), optimizer=chance.choice(("sgd", "adamw")))
        facts = launch(experiment, config, world_size=world_size).facts
        assert facts["violations"] == [] and facts["kept"]
    unchecked = [category for category, made in facts["checked"].items() if not made]
    assert unchecked == (["recoverability"] if world_size > 1 else ["data", "consistency", "recoverability"])


def test_one_rank_is_not_said_to_agree_with_anybody():
    config = Config(fault="skipped_step", fault_rank=0)
    checked = launch(experiment, config, world_size=1).facts["checked"]
    assert checked["update"] == ["lr", "norm"] and checked["consistency"] == checked["data"] == []


@pytest.fixture(scope="module")
def clean():
    return launch(experiment, Config(fault="stale_checkpoint", fault_step=7, fault_rank=0), world_size=4)


@pytest.fixture
def kept(clean):
    """A contract to break: that of the run above, before the step in which it goes wrong."""
    contract = copy.deepcopy(clean.contract)
    contract["consistency"]["steps"] = contract["consistency"]["steps"][:7]
    contract["recoverability"]["checkpoints"] = []
    assert dpviz.check_contract(contract) == []
    return contract


def test_the_same_evidence_is_on_record_however_the_run_was_started(kept):
    """What a rank saw at k = 1 in this process is what rank 0 of the pool saw, as far as it read the same samples."""
    alone = launch(experiment, Config(), world_size=1).contract
    assert list(alone["consistency"]["steps"][0]["values"]) == list(kept["consistency"]["steps"][0]["values"])
    of_first = [contract["consistency"]["steps"][0]["values"] for contract in (alone, kept)]
    assert [values["initial"][0] for values in of_first] == [of_first[0]["initial"][0]] * 2
    assert [values["batch"][0] for values in of_first] == [of_first[0]["batch"][0]] * 2


def breaks(contract):
    found = dpviz.check_contract(contract)
    assert len(found) == 1, found
    return found[0].check, found[0].ranks, str(found[0])


def test_axes_that_do_not_make_the_world(kept):
    kept["topology"]["axes"] = {"dp": 2, "tp": 4}
    kept["batch"]["counted_samples"] = None
    assert breaks(kept)[::2] == ("axes", "the axes {'dp': 2, 'tp': 4} make 8 ranks, but there are 4")


def test_a_rank_that_is_in_no_group(kept):
    kept["topology"]["groups"]["dp"] = [[0, 1, 2]]
    assert breaks(kept)[0] == "groups"


def test_another_version_of_the_data(kept):
    kept["data"]["versions"][3] = "0" * 16
    assert breaks(kept) == ("data_version", [3], "rank 3 read another version of the data")


def test_a_batch_that_is_not_what_the_product_says(kept):
    kept["batch"]["counted_samples"] = 16
    assert breaks(kept)[2] == "an update consumed 16 samples, but dp * B * K = 4 * 8 * 1 = 32"


def test_two_ranks_that_read_the_same_samples(kept):
    batch = kept["consistency"]["steps"][2]["values"]["batch"]
    batch[1] = batch[0]
    assert breaks(kept)[1:] == ([0, 1], "step 2: ranks 0, 1 read the samples of another rank")


def test_a_rank_that_calls_in_another_order(kept):
    (group,) = kept["communication"]["sequences"]
    kept["communication"]["sequences"][group]["2"] = "0" * 16
    assert breaks(kept)[1:] == ([2], "rank 2 called other collectives, or in another order")


def test_what_was_not_recorded_is_not_checked(kept):
    from dpviz.contract.check import made

    for step in kept["consistency"]["steps"]:
        del step["values"]["lr"]
    kept["data"]["versions"] = kept["communication"]["sequences"] = None
    checked = made(kept)
    assert "lr" not in checked["update"] and "data_version" not in checked["data"]
    assert checked["communication"] == ["failure"]
    assert dpviz.check_contract(kept) == []


def test_a_table_has_a_verdict_for_each_category(clean, kept):
    table = dpviz.contract_table(clean)
    assert list(table.index) == list(document.CATEGORIES)
    assert table.loc["recoverability", "verdict"].startswith("✗ step 7: the run was resumed by rank 0 from version 6")
    assert dpviz.contract_table(kept).loc["recoverability", "verdict"] == "– nothing to check it by"
    assert "64 samples a rank" in table.loc["data", "on record"]


def test_a_contract_and_a_saved_run_are_read_from_a_file(clean, kept, tmp_path):
    (tmp_path / "contract.json").write_text(json.dumps(kept))
    assert dpviz.check_contract(tmp_path / "contract.json") == []
    clean.save(tmp_path / "run.json")
    assert dpviz.check_contract(str(tmp_path / "run.json")) == dpviz.check_contract(clean) != []
    assert dpviz.Run.load(tmp_path / "run.json").contract == clean.contract


def test_a_file_that_is_cut_off_or_of_another_version_is_a_sentence(kept, tmp_path):
    text, file = json.dumps(kept), tmp_path / "contract.json"
    for cut in (0, 1, len(text) // 2, len(text) - 1):
        file.write_text(text[:cut])
        with pytest.raises(ValueError, match="does not hold a whole contract.*It may be cut off"):
            dpviz.check_contract(file)
    with pytest.raises(ValueError, match="is a contract of version 2, and this dpviz reads version 1"):
        dpviz.check_contract(kept | {"version": 2})
    with pytest.raises(ValueError, match="there is no file .*none.json"):
        dpviz.check_contract(tmp_path / "none.json")
    for other in ({}, [], {"experiment": "mine"}, {"facts": {}, "contract": {}}):
        with pytest.raises(ValueError, match="is no contract: it has no version"):
            dpviz.check_contract(other)


def test_a_contract_that_does_not_keep_the_schema_is_a_sentence(kept):
    jsonschema.Draft202012Validator.check_schema(document.schema())
    for category in document.CATEGORIES:
        lacking = {name: part for name, part in kept.items() if name != category}
        with pytest.raises(ValueError, match=f"does not keep the schema of a contract.*{category}"):
            dpviz.check_contract(lacking)
    kept["topology"]["world_size"] = "four"
    with pytest.raises(ValueError, match="at topology.world_size: 'four' is not of type 'integer'"):
        dpviz.check_contract(kept)


def test_a_step_that_lacks_a_rank_is_a_sentence(kept):
    kept["consistency"]["steps"][4]["values"]["norm"].pop()
    with pytest.raises(ValueError, match="in step 4, norm has 3 values for 4 ranks"):
        dpviz.check_contract(kept)


@pytest.mark.parametrize("name", ["unequal", "clipping", "sampler", "equivalence"])
def test_runs_of_other_questions_have_a_contract_too(name):
    config = questions.config_class(name)()
    run = launch(questions.QUESTIONS[name][0], config, world_size=config.implied_world_size() or 2)
    assert dpviz.check_contract(run) == []
    recorded = {
        "unequal": run.contract["data"]["tokens"] == [40, 160],
        "clipping": run.contract["update"]["clipping"] == {"max_norm": 1.0, "where": "average_then_clip"},
        "sampler": run.contract["data"] | {"repeated": 0, "samples": [5, 5]} == run.contract["data"],
        "equivalence": run.contract["batch"]["global_samples"] == 8,
    }
    assert recorded[name]


def test_an_experiment_of_ones_own_has_one_that_checks_little():
    run = launch(lambda config: None, {"lr": 0.1}, world_size=2)
    assert dpviz.check_contract(run) == []
    assert run.contract["update"]["lr"] == 0.1 and run.contract["data"]["samples"] is None
    assert run.contract["topology"]["axes"] is None  # nobody said how its ranks share the work


def test_a_config_of_ones_own_may_hold_anything_under_any_name():
    odd = {
        "dtype": torch.float32,
        "optimizer": torch.optim.SGD,
        "data": Path("here"),
        "micro_batch": 2.5,
        "accumulation_steps": None,
        "lr": [1, 2],
        "seed": "a",
        "bucket_cap_mb": "25",
        "mask": True,
    }
    run = launch(lambda config: None, odd, world_size=2)
    assert dpviz.check_contract(run) == []
    assert run.contract["update"]["dtype"] == "torch.float32" and run.contract["update"]["lr"] is None
    assert launch(lambda config: None, {"lr": float("inf")}, world_size=2).contract["update"]["lr"] is None


def _set(contract, *path, to):
    for part in path[:-1]:
        contract = contract[part]
    contract[path[-1]] = to


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (["consistency", "steps", 2, "values", "lr"], ["a"] * 4, "in step 2, lr holds what is no number"),
        (["consistency", "steps", 2, "values", "norm"], [[1]] * 4, "does not keep the schema"),
        (["consistency", "steps", 0, "values", "samples"], [None] * 4, "in step 0, samples holds what is no number"),
        (["update", "schedule", "steps"], 0, "0 is less than the minimum of 1"),
        (["communication", "sequences"], {"0": {"x": "y"}}, "does not keep the schema"),
        (["data", "versions"], ["a"], "data, versions has 1 values for 4 ranks"),
        (
            ["recoverability", "checkpoints"],
            [{"step": 1, "versions": [1], "parts": [["a"]] * 4}],
            "versions has 1 values",
        ),
        (["topology", "axes"], {"tp": 4}, "'dp' is a required property"),
    ],
)
def test_a_doctored_contract_is_a_sentence(kept, path, value, sentence):
    _set(kept, *path, to=value)
    with pytest.raises(ValueError, match=sentence):
        dpviz.check_contract(kept)


def test_the_contract_of_a_mesh_counts_the_samples_and_finds_the_wrong_product():
    config = questions.config_class("mesh")(dp=2, tp=2, pp=1, accumulation_steps=3)
    contract = launch(questions.QUESTIONS["mesh"][0], config, world_size=4).contract
    assert dpviz.check_contract(contract) == []
    assert contract["topology"]["axes"] == {"dp": 2, "tp": 2, "pp": 1, "cp": 1}
    assert contract["batch"]["counted_samples"] == contract["batch"]["global_samples"] == 2 * 2 * 3
    contract["topology"]["axes"] |= {"dp": 4, "tp": 1}  # who takes all ranks for data parallel ones
    assert breaks(contract)[2] == "an update consumed 12 samples, but dp * B * K = 4 * 2 * 3 = 24"


def test_of_a_long_launch_the_calls_are_compared_that_every_rank_remembers():
    calls = [Collective("0", number, "all_reduce", ((1 + number % 3,),), ("Float",)) for number in range(1, 9)]
    of_ranks = [calls, calls[2:], [*calls[3:-1], Collective("0", 8, "all_reduce", ((9,),), ("Float",))]]
    found = document._sequences(of_ranks)["0"]
    assert found["0"] == found["1"] != found["2"]
    assert len(set(document._sequences([calls, calls[5:]])["0"].values())) == 1
