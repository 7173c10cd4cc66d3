"""DDP by hand, in three steps: each gives the gradients of torch's class and of one process on the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpviz.measure.collectives import Recorder
from dpviz.parallel.ddp import BucketedGradients, all_reduce_flat, all_reduce_gradients, fill_buckets
from dpviz.ranks.launch import launch

MIB = 1 << 20


class OfSize:
    """A stand-in for a parameter of so many MiB."""

    def __init__(self, mib):
        self.nbytes = mib * MIB


def sizes(buckets):
    return [sum(one.nbytes for one in bucket) / MIB for bucket in buckets]


@pytest.mark.parametrize(
    ("parameters", "cap", "expected"),
    [
        ([1] * 8, 3, [3, 3, 2]),
        ([1] * 8, 25, [8]),
        ([1] * 8, 0.5, [1] * 8),
        ([1.5] * 6, 2, [3, 3, 3]),  # a bucket may exceed its cap
        ([0.5, 7, 0.5], 1, [7.5, 0.5]),  # a parameter larger than the cap is not split
        ([7], 1, [7]),
    ],
)
def test_a_bucket_is_closed_once_it_holds_its_cap(parameters, cap, expected):
    assert sizes(fill_buckets([OfSize(mib) for mib in parameters], cap * MIB)) == expected


@pytest.mark.parametrize("cap", [100, 4000, 4096, 10_000, 1 << 20])
def test_buckets_are_those_that_torch_makes(cap):
    parameters = [torch.zeros(size) for size in (1000, 1, 24, 5000, 3, 999, 1024, 1024, 7)]
    numbers, _ = dist._compute_bucket_assignment_by_size(parameters, [cap])
    order = {id(parameter): i for i, parameter in enumerate(parameters)}
    assert [[order[id(p)] for p in bucket] for bucket in fill_buckets(parameters, cap)] == numbers


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 33), nn.Tanh(), nn.Linear(33, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def batches(k):
    return torch.randn(k, 6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def by_hand(step):
    """The gradients of three backwards, each of the mean over this rank's batch."""
    model, x = net(), batches(dist.get_world_size())[dist.get_rank()]
    finish = {
        "per_tensor": lambda: all_reduce_gradients(model),
        "flat": lambda: all_reduce_flat(model),
        "torch": lambda: None,
    }.get(step)
    if step == "torch":
        model = DistributedDataParallel(model)
    if step.startswith("cap"):
        finish = BucketedGradients(model, cap_bytes=float(step.removeprefix("cap"))).finish
    found = []
    for scale in (1, 2, 3):
        model.zero_grad()
        (scale * model(x)).square().mean().backward()
        finish()
        found.append(gradient(model))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("step", ["per_tensor", "flat", "cap1", "cap500", "cap1000000"])
def test_each_step_is_torchs_class_and_one_process_on_the_whole_batch(step, world_size):
    found, torchs = (launch(by_hand, one, world_size=world_size).results for one in (step, "torch"))
    for i, scale in enumerate((1, 2, 3)):
        model = net()
        (scale * model(batches(world_size).flatten(0, 1))).square().mean().backward()
        for rank in range(world_size):
            torch.testing.assert_close(found[rank][i], gradient(model), rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(found[rank][i], torchs[rank][i], rtol=1e-12, atol=1e-15)
            assert torch.equal(found[rank][i], found[0][i])


@pytest.mark.parametrize(("step", "expected"), [("per_tensor", 6), ("flat", 1), ("cap1", 6), ("cap1000000", 1)])
def test_the_number_of_all_reduces_is_the_steps_own(step, expected):
    def count(step):
        recorder = Recorder()
        recorder.since_last()
        by_hand(step)
        return [entry.name for entry in recorder.since_last()]

    assert launch(count, step, world_size=2).results == [["all_reduce"] * 3 * expected] * 2


def test_buckets_are_sent_during_backward():
    def during(config):
        model = net()
        buckets = BucketedGradients(model, cap_bytes=1)
        sent_before_the_first = []
        model[0].weight.register_hook(lambda gradient: sent_before_the_first.append(len(buckets.sent)))
        model(torch.ones(1, 7, dtype=torch.float64)).sum().backward()
        return sent_before_the_first

    # The first layer's weight has its gradient last: those of the layers behind it, four, are on their way
    assert all(result[0] >= 4 for result in launch(during, world_size=2).results)


def test_they_are_sent_in_the_order_of_their_index_though_a_later_one_is_ready_first():
    """The model is used from the last built layer to the first: so the gradients come in the order of building, and
    the bucket of the last built, which is number 0, is ready last.
    """

    def out_of_order(config):
        layers = [nn.Linear(size, size, bias=False) for size in (4, 4, 4)]
        model = nn.ModuleList([layers[0], nn.Sequential(layers[1], nn.Linear(4, 4)), layers[2]])
        buckets = BucketedGradients(model, cap_bytes=1)
        came = []
        for parameter in buckets.bucket_of:
            parameter.register_post_accumulate_grad_hook(
                lambda p: came.append((buckets.bucket_of[p], len(buckets.sent)))
            )
        recorder = Recorder()
        recorder.since_last()
        x = torch.ones(2, 4)
        for module in reversed(model):
            x = module(x)
        x.sum().backward()
        sizes = [[len(flat)] for flat, _ in buckets.sent]
        issued = [list(entry.shapes[0]) for entry in recorder.since_last()]
        buckets.finish()
        return came, sizes, issued

    for came, sizes, issued in launch(out_of_order, world_size=2).results:
        order, sent = zip(*came, strict=True)
        assert order[0] == 4 and order[-1] == 0  # the last bucket is ready first, the first one last
        assert sent == (0, 0, 0, 0, 5)  # and holds back all that are ready
        assert issued == sizes == [[16], [4], [16], [16], [16]]
