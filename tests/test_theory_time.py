"""Times: the worked numbers and the course's slip, the fit, and what follows for many ranks."""

import math

import pytest

from dpviz.theory import time

B7 = {"parameters": 7e9, "flops_per_s": 1e14}


def test_the_worked_example():
    """7e9 parameters in bfloat16, 8 ranks, 50 GB/s; 1024 or 64 sequences of 1024 tokens at 1e14 a second."""
    communication = time.ring_all_reduce_seconds(14e9, 8, bytes_per_s=50e9)
    many = time.Step(time.compute_seconds(tokens=1024 * 1024, **B7), communication)
    few = time.Step(time.compute_seconds(tokens=64 * 1024, **B7), communication)
    assert communication == pytest.approx(0.49)
    assert many.compute_s == pytest.approx(440, rel=2e-3) and few.compute_s == pytest.approx(27.5, rel=2e-3)
    assert many.share == pytest.approx(0.0011, abs=5e-5) and few.share == pytest.approx(0.0175, abs=5e-5)


def test_a_model_ten_times_as_large_has_the_same_share():
    shares = [
        time.Step(
            time.compute_seconds(n, 1024 * 1024, flops_per_s=1e14),
            time.ring_all_reduce_seconds(2 * n, 8, bytes_per_s=50e9),
        ).share
        for n in (7e9, 70e9)
    ]
    assert shares[0] == pytest.approx(shares[1], rel=1e-12)


def test_latency_is_paid_once_a_step():
    seconds = time.ring_all_reduce_seconds(4000, 4, bytes_per_s=1e6, latency_s=0.5)
    assert seconds == pytest.approx(6 * 0.5 + 0.006)
    assert [time.ring_steps(k) for k in (1, 2, 4, 8)] == [0, 2, 6, 14]
    assert time.ring_steps(8, collective="all_gather") == 7


class TestFit:
    SIZES = [4e3, 6e4, 1e6, 8e6]

    def test_a_line_is_found_again(self):
        line = time.fit(self.SIZES, [0.001 + size / 1.25e8 for size in self.SIZES])
        assert line.call_s == pytest.approx(0.001) and line.bytes_per_s == pytest.approx(1.25e8)
        assert line.seconds(1.25e8) == pytest.approx(1.001)

    def test_small_messages_count_as_much_as_large_ones(self):
        """One large time that is 10 % off must not hide a latency that is a hundredth of it."""
        seconds = [0.001 + size / 1.25e8 for size in self.SIZES]
        line = time.fit(self.SIZES, [*seconds[:3], 1.1 * seconds[3]])
        assert line.call_s == pytest.approx(0.001, rel=0.1)

    def test_it_is_the_least_of_the_relative_errors(self):
        seconds = [0.0012, 0.0013, 0.011, 0.06]
        best = time.fit(self.SIZES, seconds)

        def error(line):
            return sum(math.log(line.seconds(x) / t) ** 2 for x, t in zip(self.SIZES, seconds, strict=True))

        for call, rate in ((1.001, 1), (0.999, 1), (1, 1.001), (1, 0.999)):
            assert error(best) < error(time.Line(best.call_s * call, best.bytes_per_s * rate))

    def test_no_part_is_negative(self):
        assert time.fit([1, 2, 3], [0.1, 1.0, 2.0]).call_s == 0
        assert time.fit([1, 2, 3], [2.0, 1.0, 1.0]).bytes_per_s == math.inf

    @pytest.mark.parametrize("points", [([1], [1.0]), ([5, 5], [1.0, 2.0]), ([1, 2], [0.0, 1.0]), ([0, 2], [1.0, 1.0])])
    def test_what_is_no_line_is_refused(self, points):
        with pytest.raises(ValueError, match="two different sizes above 0 at least"):
            time.fit(*points)


def test_the_bus_is_as_fast_whatever_k_and_the_algorithm_is_not():
    """At a link's own rate a ring of any k has that rate on the bus."""
    for k in (2, 3, 8):
        seconds = time.ring_all_reduce_seconds(k * 1e6, k, bytes_per_s=1.25e8)
        assert time.bus_bandwidth(k * 1e6, k, seconds) == pytest.approx(1.25e8)
        assert time.algorithm_bandwidth(k * 1e6, seconds) == pytest.approx(1.25e8 * k / (2 * (k - 1)))
    assert time.bus_bandwidth(8e6, 4, 0.1, collective="reduce_scatter") == pytest.approx(6e7)


class TestScaling:
    MACHINE = {"s_per_token": 1e-5, "payload": 840_000, "bytes_per_s": 1.25e8}

    def test_strong_scaling_meets_a_wall(self):
        steps = time.strong_scaling([1, 2, 4, 8], tokens=4096, **self.MACHINE)
        assert [step.compute_s for step in steps] == pytest.approx([4096e-5 / k for k in (1, 2, 4, 8)])
        shares = [step.share for step in steps]
        assert shares[0] == 0 and shares == sorted(shares) and shares[-1] > 0.65
        assert steps[0].seconds / steps[-1].seconds < 3  # 8 ranks, and not three times as fast

    def test_weak_scaling_does_not(self):
        steps = time.weak_scaling([2, 4, 8, 1024], tokens=4096, **self.MACHINE)
        assert len({step.compute_s for step in steps}) == 1
        assert steps[-1].communication_s < 2 * steps[0].communication_s

    def test_nothing_to_do_takes_no_share(self):
        assert time.Step(0.0, 0.0).share == 0


@pytest.mark.parametrize(
    ("machine", "sentence"),
    [({"bytes_per_s": 0}, "bytes_per_s is 0, but must be more than 0"), ({"bytes_per_s": 1, "latency_s": -1}, "is -1")],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(machine, sentence):
    with pytest.raises(ValueError, match=sentence):
        time.ring_all_reduce_seconds(1, 2, **machine)
