"""The batch of a mesh, and its groups, against numbers worked by hand and the course text's."""

import pytest

from dpviz.theory import batch, mesh


def test_only_dp_multiplies_the_batch():
    world = batch.world_size(4, tp=2, pp=2)
    assert world == 16
    assert batch.global_batch(4, micro_batch=2, accumulation_steps=8) == 64
    assert batch.global_batch(world, micro_batch=2, accumulation_steps=8) == 256  # the wrong product
    assert batch.accumulation_steps(256, dp=4, micro_batch=2) == 32


def test_megatrons_dp_has_no_ep():
    assert batch.data_parallel_size(2048, tp=8, pp=16) == 16
    assert batch.data_parallel_size(2048, tp=8, pp=16, cp=2) == 8
    with pytest.raises(ValueError, match=r"TP \* PP \* CP = 6 must divide it"):
        batch.data_parallel_size(16, tp=3, pp=2)
    assert batch.world_size(4, tp=2, separate_ep=2) == 16


def test_cp_cuts_sequences_and_adds_no_tokens():
    plain, cut = (batch.tokens(4, micro_batch=2, accumulation_steps=8, length=16, cp=cp) for cp in (1, 4))
    assert plain == (1024, 256) and cut == (1024, 64)
    with pytest.raises(ValueError, match="cp = 3 must divide it"):
        batch.tokens(4, micro_batch=2, length=16, cp=3)


def test_what_a_batch_four_times_too_large_spoils():
    spoiled = batch.spoiled(64, 256, lr=0.1, length=16, token_budget=1e6, seconds=0.5)
    assert spoiled["lr"] == {"right": 0.1, "wrong": 0.4}
    assert spoiled["schedule_steps"] == {"right": 977, "wrong": 245}  # ceil(1e6 / 1024), ceil(1e6 / 4096)
    assert spoiled["tokens_consumed"] == {"right": 977 * 1024, "wrong": 245 * 1024}
    assert spoiled["samples_per_s"] == {"right": 128, "wrong": 512}


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True])
def test_a_factor_is_a_whole_number(wrong):
    with pytest.raises(ValueError, match="must be a whole number, 1 or more"):
        batch.global_batch(wrong, micro_batch=1)


def test_ranks_count_through_the_innermost_axis_first():
    axes = {"pp": 2, "dp": 2, "tp": 2}
    assert mesh.groups(axes, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert mesh.groups(axes, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert mesh.groups(axes, "pp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups(axes, ("pp", "dp")) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    for names in axes:
        assert sorted(sum(mesh.groups(axes, names), [])) == list(range(8))
