"""When each bucket of gradients was ready, sent and done: hooks of autograd and DDP, and torch's profiler, on one
clock.

    ready    the last of its gradients has been computed on this rank (a hook of each parameter)
    handed   DDP has handed it to gloo: that it does in the order of the index (DDP's communication hook)
    start    one of gloo's threads, of which there are two, begins with its all-reduce (the profiler)
    end      the all-reduce is finished (the same hook; by hand the profiler)
    done     gradients hold the average (DDP's communication hook)
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from dpviz.measure.profiled import profiled


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One bucket of one backward; times in seconds of time.perf_counter."""

    index: int
    bytes: int
    ready_s: float
    handed_s: float
    start_s: float
    end_s: float
    done_s: float


class BucketTrace:
    """Follows the buckets of one model on this rank.

        trace = BucketTrace(ddp)
        with trace.iteration():
            loss = ddp(x).square().mean()
            loss.backward()
        trace.buckets

    It adds Python to each gradient and each bucket, so time an iteration without it. Its communication hook divides by
    the number of ranks, as DDP does by itself. Attach it before the first backward, to see the first buckets too.

    model    a DistributedDataParallel without a communication hook, or any model, its all-reduces made by hand
    buckets  by hand: the lists of parameters that travel together, in the order of their all-reduces
    """

    def __init__(self, model: nn.Module, buckets: Sequence[Sequence[torch.Tensor]] | None = None) -> None:
        if dist.get_backend() != "gloo":
            raise ValueError(
                f"the backend is {dist.get_backend()}, but when a bucket is sent is read from gloo's own threads. "
                "Give --backend gloo, or look at a trace of torch.profiler."
            )
        self.by_hand = buckets
        self.parameters = [*model.parameters()]
        self.buckets: list[Bucket] = []
        self.shares_memory = False  # gradients lie in the buckets' own memory
        self.held_bytes: int | None = None  # by gradients and DDP's buckets together, after backward
        self._ready: dict[int, float] = {}  # of each parameter, by its id
        self._seen: dict[int, tuple] = {}  # of each bucket: its parameters, its memory, when it was handed to gloo
        self._done: dict[int, tuple[float, float]] = {}  # of each bucket: when it was summed, and divided
        self._hooks = [one.register_post_accumulate_grad_hook(self._on_gradient) for one in self.parameters]
        if buckets is None:
            model.register_comm_hook(None, self._on_bucket)

    def close(self) -> None:
        """Let go of the model: parameters and hooks that know each other would stay until the next full collection."""
        for hook in self._hooks:
            hook.remove()
        self.parameters, self.by_hand = [], self.by_hand and []
        self._ready, self._seen = {}, {}

    def _on_gradient(self, parameter: torch.Tensor) -> None:
        self._ready[id(parameter)] = time.perf_counter()

    def _on_bucket(self, state, bucket):  # unannotated: torch compares annotations, and they would be strings here
        handed, index, flat = time.perf_counter(), bucket.index(), bucket.buffer()
        self._seen[index] = (bucket.parameters(), flat, handed)

        def average(future: torch.futures.Future) -> torch.Tensor:
            ended = time.perf_counter()
            summed = future.value()[0].div_(dist.get_world_size())
            self._done[index] = ended, time.perf_counter()
            return summed

        return dist.all_reduce(flat, async_op=True).get_future().then(average)

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """Follow one iteration, until its gradients hold the average; `buckets` then has its buckets, in order."""
        self._ready, self._seen, self._done = {}, {}, {}
        with profiled() as spans:
            yield
        sent = [(span.start_s, span.end_s) for span in spans if span.name == "gloo:all_reduce"]
        if self.by_hand is not None:
            self._seen = {i: (bucket, None, None) for i, bucket in enumerate(self.by_hand)}
        if len(sent) < len(self._seen):  # more there may be: a bitmap of used parameters follows the buckets
            raise ValueError(
                f"{len(self._seen)} buckets were to be sent, but the profiler saw {len(sent)} all-reduces. "
                "Send all of them inside iteration()."
            )
        self.buckets = [self._bucket(index, *sent[index]) for index in sorted(self._seen)]
        self._look_at_memory()

    def _look_at_memory(self) -> None:
        if self.by_hand is not None:  # their buckets are gone by now
            return
        gradients = [p.grad.untyped_storage() for p in self.parameters if p.grad is not None]
        flats = [flat.untyped_storage() for _, flat, _ in self._seen.values() if flat is not None]
        held = {storage.data_ptr(): storage.nbytes() for storage in gradients + flats}
        self.held_bytes = sum(held.values())
        self.shares_memory = {one.data_ptr() for one in gradients} == {one.data_ptr() for one in flats}

    def _bucket(self, index: int, start: float, end: float) -> Bucket:
        parameters, flat, handed = self._seen[index]
        handed = start if handed is None else handed
        # Of a parameter that backward did not reach DDP sends zeros, and never waits for it
        ready = max((self._ready[id(p)] for p in parameters if id(p) in self._ready), default=handed)
        # The profiler sees the end after the hook has run, and its clock is read apart from ours
        summed, divided = self._done.get(index, (end, end))
        start = min(max(start, handed), max(handed, summed))
        end = max(start, min(end, summed))
        return Bucket(
            index=index,
            bytes=sum(p.nbytes for p in parameters) if flat is None else flat.nbytes,
            ready_s=min(ready, handed),
            handed_s=handed,
            start_s=start,
            end_s=end,
            done_s=max(end, divided),
        )
