"""What fingerprints cost, against numbers worked by hand."""

import random

import pytest

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
