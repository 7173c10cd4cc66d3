"""Bytes of model state: the ZeRO paper's numbers and the courses' worked examples."""

import pytest

from dpviz.theory.memory import GB, bytes_a_parameter, model_state, smallest_world_size, wasted


def gigabytes(parameters, k):
    return [model_state(parameters, k, stage=stage).total / GB for stage in range(4)]


@pytest.mark.parametrize(
    "parameters, k, expected",
    [
        (7e9, 8, [112, 38.5, 26.25, 14]),
        (13e9, 8, [208, 71.5, 48.75, 26]),
        (7.5e9, 64, [120, 31.40625, 16.640625, 1.875]),  # the paper's figure 1: 120, 31.4, 16.6 and 1.9 GB
        (5e12, 1, [80_000] * 4),
    ],
)
def test_worked_examples(parameters, k, expected):
    assert gigabytes(parameters, k) == expected


def test_sixteen_bytes_term_by_term():
    assert bytes_a_parameter(mixed_precision=True) == (2, 2, 8, 4)
    assert bytes_a_parameter(mixed_precision=False) == (4, 4, 8, 0)
    assert bytes_a_parameter(mixed_precision=False, optimizer="sgd", dtype="float64") == (8, 8, 0, 0)
    assert bytes_a_parameter(mixed_precision=True).total == 16


def test_each_stage_divides_what_it_says():
    assert model_state(1000, 4, stage=0) == (2000, 2000, 8000, 4000)
    assert model_state(1000, 4, stage=1) == (2000, 2000, 2000, 1000)
    assert model_state(1000, 4, stage=2) == (2000, 500, 2000, 1000)
    assert model_state(1000, 4, stage=3) == (500, 500, 2000, 1000)


def test_layers_are_padded_one_by_one():
    assert model_state([5, 3, 1], 4, stage=3) == tuple(4 * b for b in (2, 2, 8, 4))  # 2 + 1 + 1 of each
    assert model_state(9, 4, stage=3) == tuple(3 * b for b in (2, 2, 8, 4))


def test_alone_no_stage_saves_anything():
    assert len({model_state(1000, 1, stage=stage) for stage in range(4)}) == 1
    assert wasted(7e9, 1) == 0 and wasted(7e9, 8) == 784 * GB


def test_small_k_saves_more_than_little():
    """ZeRO-3 saves half at k = 2; ZeRO-1 37.5 %."""
    whole = gigabytes(1e9, 2)[0]
    assert [1 - part / whole for part in gigabytes(1e9, 2)[1:]] == [0.375, 0.4375, 0.5]


def test_the_least_number_of_ranks():
    assert smallest_world_size(13e9, 40 * GB) == 6
    assert model_state(13e9, 6, stage=3).total <= 40 * GB < model_state(13e9, 5, stage=3).total


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: model_state(10, 4, stage=4), "stage is 4, but must be 0, 1, 2 or 3"),
        (lambda: model_state(10, 0, stage=0), "k is 0, but must be a whole number"),
        (lambda: bytes_a_parameter(mixed_precision=True, optimizer="lion"), "optimizer is 'lion', but must be one of"),
        (lambda: smallest_world_size(10, 0), "0 bytes are left"),
    ],
)
def test_wrong_values_are_sentences(call, said):
    with pytest.raises(ValueError, match=said):
        call()
