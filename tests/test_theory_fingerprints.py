"""What fingerprints cost, against numbers worked by hand."""

import random

import pytest
import torch

from dpviz.measure import fingerprint
from dpviz.theory.fingerprints import costs

RATES = {"digest": 1e9, "checksum": 1e10, "probe": 1e9}


def test_5T_parameters_on_2000_ranks():
    found = costs(values=5e12, ranks=2000, bytes_per_s=RATES)
    assert found["digest"].read_bytes == 40_000_000_000  # 80 TB over 2,000 ranks
    assert found["digest"].seconds == pytest.approx(40)
    assert found["checksum"].seconds == pytest.approx(4)
    assert found["probe"].read_bytes == 1024
    assert found["probe"].steps_until_seen == pytest.approx(2.5e9 / 64)


def test_a_probe_needs_as_many_steps_as_drawing_says():
    """Drawn 4,000 times: 4 of 40 places each time, until a certain one is among them."""
    chance = random.Random(0)

    def steps():
        count = 1
        while all(chance.randrange(40) for _ in range(4)):
            count += 1
        return count

    mean = sum(steps() for _ in range(4000)) / 4000
    expected = costs(values=40, ranks=1, bytes_per_s=RATES, probed=4)["probe"].steps_until_seen
    assert mean == pytest.approx(expected, rel=0.1)


def test_a_probe_of_every_value_sees_any_edit_at_once():
    state = [torch.arange(5.0), torch.arange(3.0)]
    edited = [state[0].clone(), state[1].clone()]
    edited[0][2] += 1
    for seed in range(20):
        assert fingerprint.probe(state, seed=seed, values=8) != fingerprint.probe(edited, seed=seed, values=8)
        assert fingerprint.probe(state, seed=seed, values=99) == fingerprint.probe(state, seed=seed, values=8)
    assert fingerprint.probe([], seed=0) == fingerprint.digest([])


def test_a_checksum_sees_any_single_difference_in_any_type():
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.uint8, torch.bool):
        state = torch.zeros(7, dtype=dtype)
        edited = state.clone()
        edited[3] = 1
        assert fingerprint.checksum([state]) != fingerprint.checksum([edited]), dtype
    halves = torch.tensor([0x1_FFFFFFFF]).view(torch.float64)  # two halves of 32 bits that would cancel
    assert fingerprint.checksum([halves]) != fingerprint.checksum([torch.zeros(1, dtype=torch.float64)])
