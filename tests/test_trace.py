"""What is traced of a backward: when each bucket was ready, handed over, begun, ended and done."""

import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dpviz.measure import timeline
from dpviz.measure.trace import BucketTrace
from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import launch

pytestmark = pytest.mark.quiet


class Net(nn.Module):
    """Layers of 64 KiB, used in the order of building or from the last to the first."""

    def __init__(self, *, backwards):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(128, 128, bias=False) for _ in range(4))
        self.backwards = backwards

    def forward(self, x):
        for layer in reversed(self.layers) if self.backwards else self.layers:
            x = layer(x)
            torch.mm(torch.ones(300, 300), torch.ones(300, 300))  # so that layers are apart in time
        return x


def traced(config):
    """Three backwards of DDP, of the last one (buckets, begin, end, the gradient); a static graph's buckets are rebuilt
    after two.
    """
    ddp = DistributedDataParallel(Net(backwards=config.get("backwards", False)), **config["ddp"])
    trace = BucketTrace(ddp)
    for _ in range(3):
        ddp.zero_grad()
        loss = ddp(torch.full((4, 128), 1.0 + dist.get_rank())).square().mean()
        with trace.iteration():
            begin = time.perf_counter()
            loss.backward()
            end = time.perf_counter()
    return [vars(one) for one in trace.buckets], begin, end, [p.grad for p in ddp.parameters()], trace


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"static_graph": True}, {"gradient_as_bucket_view": True}])
def test_the_moments_of_a_bucket_come_in_order_and_within_backward(options, world_size):
    def moments(config):
        return traced(config)[:3]

    for buckets, begin, end in launch(
        moments, {"ddp": {"bucket_cap_mb": 0.1, **options}}, world_size=world_size
    ).results:
        assert [bucket["bytes"] for bucket in buckets] == [2 << 16] * 2
        assert [bucket["index"] for bucket in buckets] == [0, 1]
        for b in buckets:
            times = [begin, b["ready_s"], b["handed_s"], b["start_s"], b["end_s"], b["done_s"], end]
            assert times == sorted(times)


def test_a_bucket_that_is_ready_is_held_back_until_those_before_it_are_sent():
    def moments(config):
        return traced(config)[0]

    ddp = {"bucket_cap_mb": 0.01, "find_unused_parameters": True}  # which keeps DDP from rebuilding its buckets
    for backwards in (False, True):
        config = {"ddp": ddp, "backwards": backwards}
        for buckets in launch(moments, config, world_size=2, on_print=lambda *_: None).results:
            ready = [bucket["ready_s"] for bucket in buckets]
            assert ready == sorted(ready, reverse=backwards)
            handed = [bucket["handed_s"] for bucket in buckets]
            assert handed == sorted(handed)
            if backwards:
                assert min(handed) >= max(ready)


def test_its_hook_averages_as_ddp_does():
    def both(config):
        ddp = DistributedDataParallel(Net(backwards=False))
        torch.manual_seed(0)
        for parameter in ddp.parameters():
            nn.init.normal_(parameter)
        return traced_gradient(ddp, trace=False), traced_gradient(DistributedDataParallel(ddp.module), trace=True)

    def traced_gradient(ddp, *, trace):
        trace = BucketTrace(ddp) if trace else None
        ddp.zero_grad()
        ddp(torch.full((4, 128), 1.0 + dist.get_rank())).square().mean().backward()
        return torch.cat([p.grad.flatten() for p in ddp.parameters()])

    for plain, with_trace in launch(both, world_size=2).results:
        assert plain.abs().max() > 0
        torch.testing.assert_close(with_trace, plain, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shared", [True, False])
def test_it_sees_whether_gradients_lie_in_the_buckets(shared):
    def memory(config):
        trace = traced(config)[4]
        return trace.shares_memory, trace.held_bytes

    config = {"ddp": {"bucket_cap_mb": 0.1, "gradient_as_bucket_view": shared}}
    assert launch(memory, config, world_size=2).results == [(shared, (4 << 16) * (1 if shared else 2))] * 2


def test_by_hand_it_is_told_what_travels_together():
    def by_hand(config):
        model = Net(backwards=False)
        pairs = [list(model.layers[:2].parameters()), list(model.layers[2:].parameters())]
        trace = BucketTrace(model, pairs)
        loss = model(torch.ones(4, 128)).sum()
        with trace.iteration():
            begin = time.perf_counter()
            loss.backward()
            middle = time.perf_counter()
            for pair in pairs:
                dist.all_reduce(torch.cat([p.grad.flatten() for p in pair]))
            end = time.perf_counter()
        return [vars(bucket) for bucket in trace.buckets], begin, middle, end

    for buckets, begin, middle, end in launch(by_hand, world_size=2).results:
        assert [bucket["bytes"] for bucket in buckets] == [2 << 16] * 2
        assert begin <= buckets[1]["ready_s"] <= buckets[0]["ready_s"] <= middle  # the first layers' come last
        assert middle <= buckets[0]["start_s"] <= buckets[0]["end_s"] <= buckets[1]["start_s"] + 1e-3
        assert buckets[1]["end_s"] <= end + 1e-3


def test_a_bucket_that_is_not_sent_is_a_sentence():
    def unsent(config):
        model = Net(backwards=False)
        with BucketTrace(model, [list(model.parameters())]).iteration():
            model(torch.ones(4, 128)).sum().backward()

    with pytest.raises(RankError, match="1 buckets were to be sent, but the profiler saw 0 all-reduces"):
        launch(unsent, world_size=2)


def test_closed_it_lets_go_of_the_model():
    def gone(config):
        model = Net(backwards=False)
        trace = BucketTrace(model, [list(model.parameters())])
        with trace.iteration():
            model(torch.ones(4, 128)).sum().backward()
            dist.all_reduce(torch.cat([p.grad.flatten() for p in model.parameters()]))
        if config:
            trace.close()
        left = weakref.ref(model.layers[0].weight)
        gc.disable()
        del model, trace
        gc.enable()
        return left() is None

    assert [launch(gone, closed, world_size=1).results for closed in (True, False)] == [[True], [False]]


def test_the_profiler_says_nothing_and_an_error_inside_leaves_it_usable():
    def failing(config):
        model = Net(backwards=False)
        trace = BucketTrace(model, [])
        for _ in range(2):
            try:
                with trace.iteration():
                    raise KeyError
            except KeyError:
                assert not torch.autograd._profiler_enabled()
        with trace.iteration():
            model(torch.ones(4, 128)).sum().backward()
        return trace.buckets

    run = launch(failing, world_size=2)
    assert run.results == [[], []]
    assert run.prints == [[], []]


def test_the_time_in_flight_is_counted_once_and_begins_with_the_last_rank():
    def bucket(start, end):
        return {"start_s": start, "end_s": end, "handed_s": start}

    ranks = [
        [bucket(0, 4), bucket(1, 5), bucket(9, 10)],  # the first waits for its partner until 3
        [bucket(3, 4), bucket(3.5, 6), bucket(9, 11)],
    ]
    assert timeline.in_flight_s(ranks) == 3 + 2
    assert [timeline.lateness_s(ranks, rank) for rank in (0, 1)] == [0, 3]
    assert timeline.in_flight_s([[], []]) == timeline.lateness_s([[], []], 0) == 0


def test_a_backward_of_all_ranks_is_from_the_latest_start_to_the_latest_end():
    assert timeline.backward_s([{"backward": 1, "done": 9}, {"backward": 4, "done": 10}]) == 6


def test_a_timeline_has_a_lane_for_what_is_computed_and_for_each_bucket():
    marks = {"data": -3, "forward": -2, "backward": 0, "done": 9}
    one = {"index": 0, "bytes": 8, "ready_s": 1, "handed_s": 1, "start_s": 2, "end_s": 5, "done_s": 6}
    assert [(e.lane, e.name, e.start_s, e.end_s) for e in timeline.events(marks, [one])] == [
        ("data", "data", -3, -2),
        ("forward", "forward", -2, 0),
        ("backward", "backward", 0, 9),
        ("bucket 0", "wait", 1, 2),
        ("bucket 0", "send", 2, 5),
    ]
    assert timeline.shifted(one, 10) == {**{name: value + 10 for name, value in one.items()}, "index": 0, "bytes": 8}
