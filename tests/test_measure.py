"""Bytes from the kernel, collectives from torch's recorder, fingerprints of a rank's state."""

import pytest
import torch
import torch.distributed as dist

from dpviz.measure import destroyed, fingerprint, wire
from dpviz.ranks.launch import launch
from dpviz.theory import traffic


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
@pytest.mark.parametrize("elements", [1, 10, 1000, 1 << 18])
def test_the_kernels_count_of_an_all_reduce_is_the_formulas_to_the_byte(world_size, elements):
    def once(config):
        dist.all_reduce(torch.ones(elements))

    expected = traffic.gloo_all_reduce(elements, world_size, element_size=4)
    assert [one.sent for one in launch(once, world_size=world_size).wire] == [
        sent.payload + sent.framing for sent in expected
    ]


def test_what_one_sends_the_others_receive():
    def once(config):
        dist.broadcast(torch.ones(1 << 16), 0)

    of_ranks = launch(once, world_size=4).wire
    assert sum(one.sent for one in of_ranks) == sum(one.received for one in of_ranks)


@pytest.mark.parametrize("world_size", [2, 4, 5, 8])
def test_a_broadcast_is_a_binomial_tree(world_size):
    def once(config):
        dist.broadcast(torch.ones(1000), 0)

    copies, framing = traffic.broadcast_bytes(4000, world_size), traffic.broadcast_framing_bytes(world_size)
    assert [one.sent for one in launch(once, world_size=world_size).wire] == [
        a + b for a, b in zip(copies, framing, strict=True)
    ]


def test_a_launch_counts_only_itself():
    def once(config):
        dist.all_reduce(torch.ones(config))

    small, large, again = (launch(once, size, world_size=2).wire[0].sent for size in (100, 100_000, 100))
    assert small == again < large
    assert launch(lambda config: None, world_size=4).wire[0].sent == 0


@pytest.mark.parametrize("groups", [1, 2 * destroyed.MOST])
def test_what_a_group_carried_counts_after_it_was_destroyed(groups):
    def once(config):
        before = len(wire.sent_by_connection())
        for _ in range(groups):
            group = dist.new_group([0, 1])
            dist.all_reduce(torch.ones(100_000), group=group)
            dist.destroy_process_group(group)
        return before, len(wire.sent_by_connection())

    run, again = (launch(once, world_size=2) for _ in range(2))
    assert all(2 * 200_000 <= one.sent / groups < 2.01 * 200_000 for one in [*run.wire, *again.wire])
    assert all(after - before <= destroyed.MOST for before, after in run.results)
    for (first, _), (second, _) in zip(run.results, again.results, strict=True):
        assert second <= first  # the launch before has let go of its own


def test_destroying_is_torchs_own_again_once_a_launch_is_over():
    before = dist.destroy_process_group
    launch(lambda config: None, world_size=1)
    assert dist.destroy_process_group is before is dist.distributed_c10d.destroy_process_group


def test_collectives_are_recorded_in_order_with_their_shapes():
    def some(config):
        dist.all_reduce(torch.ones(2, 3))
        dist.broadcast(torch.ones(5, dtype=torch.float64), 0)
        dist.barrier()

    for _ in range(2):  # a warm rank's older ones are left out
        run = launch(some, world_size=2)
        assert [str(entry) for entry in run.collectives[1]] == ["all_reduce of [2, 3]", "broadcast of [5]", "barrier"]
        assert [entry.payload for entry in run.collectives[1]] == [24, 40, 0]


def test_a_digest_sees_one_bit():
    tensors = [torch.ones(3, dtype=torch.bfloat16), torch.zeros(2)]
    before = fingerprint.digest(tensors)
    assert fingerprint.digest([t.clone() for t in tensors]) == before
    tensors[1][0] = -0.0
    assert fingerprint.digest(tensors) != before
    assert fingerprint.digest([]) == fingerprint.digest(iter(()))


def test_a_sample_is_spread_over_all_tensors():
    assert fingerprint.sample([torch.arange(5.0), torch.arange(5.0, 15.0)]) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert fingerprint.sample([torch.tensor(3.0)]) == [3.0]


def test_messages_between_two_ranks_do_not_shift_the_numbers_of_collectives():
    def talk(config):
        if dist.get_rank() < 2:
            dist.send(torch.ones(1), 1) if dist.get_rank() == 0 else dist.recv(torch.ones(1), 0)
        for size in config:
            dist.all_reduce(torch.ones(size))

    launch(talk, (1, 2, 3), world_size=3)  # rank 2 has issued less than the others, and no collective less
    again = launch(talk, (4, 5), world_size=3)
    assert [[entry.number for entry in of_rank] for of_rank in again.collectives] == [[1, 2]] * 3
    other_group = launch(talk, (6, 7, 8), world_size=2)
    assert [[entry.number for entry in of_rank] for of_rank in other_group.collectives] == [[1, 2, 3]] * 2
