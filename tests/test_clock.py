"""The clocks of ranks: one host has one clock; between hosts the offset is found within what it claims."""

import time

import pytest

from dpviz.measure import clock
from dpviz.ranks.launch import launch

pytestmark = pytest.mark.quiet


def test_ranks_of_one_host_need_no_alignment():
    found = launch(lambda config: clock.offset(), world_size=4).results
    assert found == [clock.Offset(seconds=0.0, uncertainty_s=0.0, how=clock.SAME_HOST)] * 4


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_clock_that_is_wrong_by_seconds_is_found_within_the_uncertainty(world_size):
    def elsewhere(config):
        import torch.distributed as dist

        rank = dist.get_rank()
        return clock.offset(host=f"host {rank}", now=lambda: ahead(rank))

    def ahead(rank):
        return time.perf_counter() + 1000.0 * rank

    found = launch(elsewhere, world_size=world_size).results
    for rank, offset in enumerate(found):
        assert abs(offset.seconds + 1000.0 * rank) <= offset.uncertainty_s + 1e-9
        assert 0 < offset.uncertainty_s < 0.05 or rank == 0
        assert ("round trips" in offset.how) == (rank > 0)


def test_only_other_hosts_ask():
    def two_hosts(config):
        import torch.distributed as dist

        return clock.offset(host=f"host {dist.get_rank() // 2}")

    assert [offset.how == clock.SAME_HOST for offset in launch(two_hosts, world_size=4).results] == [
        True,
        True,
        False,
        False,
    ]


def test_one_rank_is_its_own_clock():
    assert launch(lambda config: clock.offset(), world_size=1).results[0].seconds == 0.0


def test_a_host_is_told_by_its_boot_or_its_name(monkeypatch):
    assert clock.host_id() == clock.host_id() != ""

    def unreadable(*_, **__):
        raise OSError

    monkeypatch.setattr(clock.Path, "read_text", unreadable)
    assert clock.host_id() == clock.socket.gethostname()
