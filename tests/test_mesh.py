"""A mesh of real ranks: the step of one process, the samples that were really read, and bytes group by group."""

from functools import cache

import pytest

from dpviz import check_contract
from dpviz.checks import check_same_trajectory
from dpviz.questions.mesh import Config
from dpviz.ranks.launch import launch
from dpviz.theory import mesh

EXPERIMENT = "dpviz.experiments.mesh:experiment"
SMALL = {"dtype": "float64", "accumulation_steps": 2}
CASE_20 = {"dp": 4, "tp": 2, "pp": 2, "micro_batch": 2, "accumulation_steps": 8, "dtype": "float64"}


def settings(**fields):
    return Config(**{**SMALL, "tp": 1, "pp": 1, **fields})


@cache
def run(**fields):
    return launch(EXPERIMENT, settings(**fields), timeout=120)


def test_sixteen_ranks_read_64_samples_and_not_256():
    found = run(**CASE_20)
    facts, read = found.facts, [{sample for sample, _ in result["read"]} for result in found.results]
    assert read[0] == read[1] == read[8] == read[9] and not read[0] & read[2]  # halves and stages of one replica
    assert (facts["global_batch"], facts["distinct_samples"], facts["wrong_global_batch"]) == (64, 64, 256)
    assert facts["samples_read"] == [16] * 16  # K B each, and every sample by tp * pp = 4 ranks
    assert facts["tokens_per_step"] == facts["distinct_tokens"] == 64 * 16
    assert facts["max_difference_from_single"] < 1e-12
    assert facts["spoiled"]["lr"] == {"right": 0.1, "wrong": pytest.approx(0.4)}


@pytest.mark.parametrize(
    "fields",
    [
        {"dp": 2, "tp": 2},
        {"dp": 2, "pp": 2},
        {"dp": 4, "shard": 2},
        CASE_20,
        {"dp": 4, "tp": 2, "pp": 2, "shard": 2, "width": 31, "layers": 2},  # padded shards, unequal segments
        {"dp": 2, "cp": 4},
        {"dp": 1, "tp": 1},
    ],
    ids=["dp tp", "dp pp", "hsdp", "dp tp pp", "hsdp tp pp", "dp cp", "alone"],
)
def test_the_step_is_that_of_one_process_and_bytes_are_the_formulas_group_by_group(fields):
    facts = run(**fields).facts
    assert facts["max_difference_from_single"] < 1e-12
    assert facts["distinct_samples"] == facts["global_batch"]
    assert facts["distinct_tokens"] == facts["tokens_per_step"]
    assert facts["wire_bytes_by_group"] == facts["wire_bytes_by_group_predicted"]
    assert facts["bytes_per_rank"] == facts["bytes_per_rank_predicted"]


def test_a_run_that_diverges_is_told_from_one_that_is_wrong():
    facts = run(dp=2, tp=2, lr=100.0, steps=20, dtype="float32").facts
    assert facts["as_one_process"] and facts["max_difference_from_single"] == float("inf")


def test_groups_are_those_of_the_mesh():
    config = settings(**CASE_20)
    groups = run(**CASE_20).facts["groups"]
    assert groups == {axis: mesh.groups(config.axes(), axis) for axis in ("pp", "dp", "cp", "tp")}
    assert groups["tp"][0] == [0, 1] and groups["dp"][0] == [0, 2, 4, 6] and groups["pp"][0] == [0, 8]
    hsdp = run(dp=4, shard=2).facts["groups"]
    assert hsdp["shard"] == [[0, 1], [2, 3]] and hsdp["replicate"] == [[0, 2], [1, 3]] and hsdp["dp"] == [[0, 1, 2, 3]]


def test_more_data_parallel_ranks_read_more_and_send_as_much():
    two, four = (run(dp=dp, pp=2, accumulation_steps=2, layers=2).facts for dp in (2, 4))
    assert four["distinct_samples"] == 2 * two["distinct_samples"]
    for facts, share in ((two, 1.0), (four, 1.5)):  # 2(D-1)/D of this rank's own gradients: 2 at most
        sent = facts["wire_bytes_by_group"]["dp"][0] - facts["framing_bytes_by_group_predicted"]["dp"][0]
        assert sent / (8 * facts["parameters_per_rank"][0]) == pytest.approx(share, rel=0.001)


def test_experts_inside_dp_take_no_ranks_and_outside_of_it_they_read_nothing_new():
    inside = run(dp=4, tp=2, ep=2).facts
    outside = run(dp=4, ep=2, expert_axis="separate").facts
    assert inside["groups"]["ep"] == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert outside["groups"]["ep"] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert inside["distinct_samples"] == outside["distinct_samples"] == 16
    for facts in (inside, outside):
        assert facts["wire_bytes_by_group"]["ep"] == [0] * 8  # a group, and no experts
        assert facts["max_difference_from_single"] < 1e-12


def test_cp_ranks_read_parts_of_the_same_samples():
    facts = run(dp=2, cp=4).facts
    assert facts["samples_read"] == [4] * 8 and facts["tokens_read"] == [4 * 4] * 8
    assert facts["distinct_samples"] == 8 and facts["distinct_tokens"] == 8 * 16


@pytest.mark.thorough
def test_counted_bytes_are_the_formulas_without_headers(monkeypatch):
    monkeypatch.setenv("DPVIZ_WIRE", "counted")
    facts = launch(EXPERIMENT, settings(dp=4, tp=2, pp=2, shard=2, layers=2)).facts
    for axis, sent in facts["wire_bytes_by_group"].items():
        assert sent == pytest.approx(facts["wire_bytes_by_group_predicted"][axis], rel=0.001), axis
    assert not any(map(any, facts["framing_bytes_by_group_predicted"].values()))


@pytest.mark.parametrize("fields", [{"dp": 2, "tp": 2}, {"dp": 4, "shard": 2, "optimizer": "adamw"}], ids=str)
def test_torchs_own_mesh_trains_the_same(fields):
    by_hand = run(**fields)
    torchs = launch("dpviz.experiments.mesh_torch:experiment_with_torch", settings(**fields))
    assert "Same trajectory over 3 steps" in check_same_trajectory(by_hand, torchs, atol=1e-10)


def test_torchs_own_mesh_may_be_made_again_in_the_same_ranks():
    for _ in range(2):
        found = launch("dpviz.experiments.mesh_torch:experiment_with_torch", settings(dp=2, tp=2))
        assert [record.step for record in found.records[0]] == [0, 1, 2]


@pytest.mark.parametrize("fields", [{"dp": 2, "tp": 2}, {"dp": 4, "shard": 2}], ids=str)
def test_the_bytes_of_the_run_are_at_least_those_of_its_steps(fields):
    for found in (run(**fields), run(**fields, lr=0.05)):  # in ranks that begin, and in ranks that are warm
        assert sum(one.sent for one in found.wire) >= found.config["steps"] * sum(found.facts["wire_bytes"])


@pytest.mark.parametrize("fields", [{"dp": 2, "tp": 2}, {"dp": 4, "shard": 2}], ids=str)
def test_the_contract_says_how_dp_lies_in_the_mesh_also_where_no_books_are_kept(fields):
    torchs = launch("dpviz.experiments.mesh_torch:experiment_with_torch", settings(**fields)).contract
    by_hand = run(**fields).contract
    assert torchs["topology"] == by_hand["topology"]
    assert torchs["topology"]["axes"] == {"tp": 1, "pp": 1, "cp": 1} | {k: n for k, n in fields.items() if k != "shard"}
    assert torchs["batch"]["global_samples"] == by_hand["batch"]["global_samples"] == fields["dp"] * 2 * 2
    assert torchs["batch"]["counted_samples"] is None and check_contract(torchs) == []


@pytest.mark.parametrize(
    "fields", [CASE_20, {"dp": 4, "ep": 2, "tp": 2}, {"dp": 2, "ep": 2, "cp": 2, "expert_axis": "separate"}], ids=str
)
def test_the_configs_groups_are_those_that_ranks_say(fields):
    assert settings(**fields).groups() == run(**fields).facts["groups"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"dp": 4, "tp": 4, "pp": 2}, r"dp x tp x pp x cp is 4 x 4 x 2 x 1 = 32 ranks, but .* at most 16 here. Lower"),
        ({"dp": 8, "ep": 4, "expert_axis": "separate"}, r"dp x tp x pp x cp x ep is 8 x 1 x 1 x 1 x 4 = 32 ranks"),
        ({"dp": 4, "shard": 3}, "shard is 3, but it must divide dp, 4. Give one of 1, 2, 4, or another dp"),
        ({"dp": 4, "ep": 3}, "ep is 3, but it must divide dp, 4. Give one of 1, 2, 4, or expert_axis separate"),
        ({"pp": 3}, "pp is 3, but it must divide layers, 4"),
        ({"tp": 3}, "tp is 3, but it must divide twice width, 64"),
        ({"cp": 3, "dp": 1}, "cp is 3, but it must divide the tokens of a sample, 16"),
        ({"dp": 16, "micro_batch": 64, "accumulation_steps": 4}, "is 4096 samples a step, but at most 3000"),
        ({"dp": 0}, "dp is 0, but it must be a whole number from 1 to 16"),
    ],
)
def test_wrong_values_are_sentences(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        settings(**fields)


def test_a_world_of_another_size_is_a_sentence():
    with pytest.raises(ValueError, match="world_size is 8, but the fields describe 16 ranks"):
        launch(EXPERIMENT, Config(), world_size=8)
