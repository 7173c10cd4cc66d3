"""The ring and the naive way give what torch's own collectives give, and send what the formulas say."""

import ast
import inspect

import pytest
import torch
import torch.distributed as dist

from dpviz.experiments.all_reduce import gloo_all_gather, gloo_reduce_scatter
from dpviz.parallel import ring
from dpviz.ranks.launch import launch
from dpviz.theory import traffic

RANKS = [1, 2, 3, 4, 5, 8]
LENGTHS = [0, 1, 3, 8, 1000, 12345]  # few divide by the number of ranks


def handed_in(length, dtype=torch.float64):
    return ((torch.arange(length) * 7 + 3 * dist.get_rank()) % 8).to(dtype)  # sums are exact, in bfloat16 too


@pytest.mark.parametrize("k", RANKS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_both_all_reduces_are_torchs(k, dtype):
    def compare(config):
        for length in LENGTHS:
            expected = handed_in(length, dtype)
            if length:  # gloo has no all-reduce of nothing
                dist.all_reduce(expected)
            for function in (ring.all_reduce, ring.naive_all_reduce):
                tensor = handed_in(length, dtype)
                function(tensor)
                assert torch.equal(tensor, expected), (function.__name__, length)

    launch(compare, world_size=k)


@pytest.mark.parametrize("k", RANKS)
def test_the_halves_are_torchs(k):
    def compare(config):
        tensor = handed_in(6 * k)
        own = gloo_reduce_scatter(tensor)
        assert torch.equal(ring.reduce_scatter(tensor), own)
        assert torch.equal(tensor, handed_in(6 * k))  # as it was
        assert torch.equal(ring.all_gather(own), gloo_all_gather(own))

    launch(compare, world_size=k)


@pytest.mark.parametrize("shape", [(), (3, 5), (2, 3, 4)])
def test_a_tensor_of_any_shape(shape):
    def compare(config):
        expected = torch.full(shape, 1.0 + dist.get_rank())
        tensor = expected.clone()
        dist.all_reduce(expected)
        ring.all_reduce(tensor)
        assert torch.equal(tensor, expected)

    launch(compare, world_size=3)


@pytest.mark.parametrize("k", [2, 3, 4, 8])
def test_the_ring_sends_what_is_least(k):
    run = launch(lambda config: ring.all_reduce(torch.ones(5040)), world_size=k)
    headers = 3 * traffic.HEADER * 2 * (k - 1)
    assert {wire.sent for wire in run.wire} == {traffic.ring_all_reduce_bytes(4 * 5040, k) + headers}


def test_the_naive_way_goes_through_rank_0():
    sent = [wire.sent for wire in launch(lambda config: ring.naive_all_reduce(torch.ones(5000)), world_size=4).wire]
    assert sent == [3 * (20000 + 3 * traffic.HEADER), *3 * [20000 + 3 * traffic.HEADER]]


def test_what_travels_can_be_watched():
    def watch(config):
        seen = []

        def exchange(outgoing, incoming):
            seen.append(outgoing.tolist())
            ring.exchange(outgoing, incoming)

        ring.all_reduce(torch.arange(4.0) + 10 * dist.get_rank(), exchange=exchange)
        return seen

    # rank 0 of 2 sends what rank 1 owns, and then its own chunk, summed
    assert launch(watch, world_size=2).results == [[[2.0, 3.0], [10.0, 12.0]], [[10.0, 11.0], [14.0, 16.0]]]


def test_the_receive_is_begun_before_the_send(monkeypatch):
    """Else two ranks take turns on their one connection: measured, on a link of 1 Gb/s, twice the time."""
    begun = []
    fakes = {"get_rank": lambda: 0, "get_world_size": lambda: 2, "P2POp": lambda call, *_: call}
    for name, fake in {**fakes, "batch_isend_irecv": lambda calls: begun.extend(calls) or []}.items():
        monkeypatch.setattr(dist, name, fake)
    ring.exchange(torch.ones(1), torch.ones(1))
    assert begun == [dist.irecv, dist.isend]


def test_the_file_can_be_copied_out_and_each_function_shown():
    tree = ast.parse(inspect.getsource(ring))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert max(node.end_lineno - node.lineno + 1 for node in functions) <= 25
    assert "dpviz" not in {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
