"""Whatever the case: every implementation by hand trains as one process on the whole batch does, and sends to the byte
what the formulas say.

Hypothesis draws lists of cases, and one launch for each number of ranks runs all of its cases in a loop. A run is the
same every time; CI draws more. What fails ends in `Case(...)`: to run it again, write it above the test as
@example(cases=[Case(...)]), or call `why_wrong([Case(...)])`. SHRINK=1 looks for a smaller one, which takes minutes.
"""

import functools
import itertools
import os
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_

from dpviz.measure.wire import Counters
from dpviz.parallel import ring, zero
from dpviz.parallel.ddp import BucketedGradients, all_reduce_flat, all_reduce_gradients, fill_buckets
from dpviz.parallel.fsdp import FullySharded, reshard, unshard
from dpviz.ranks.launch import launch
from dpviz.records import MEASURED
from dpviz.theory import traffic

EXAMPLES = 6 if "CI" in os.environ else 1
CASES = 14  # in an example: more of them cost less than more launches
REPEATABLE = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate] + [Phase.shrink] * ("SHRINK" in os.environ),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
TOLERANCE = {"float64": 1e-9, "float32": 2e-3}  # of bfloat16 only what must be equal to the bit is asked
STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Case:
    counts: tuple[tuple[int, ...], ...] = ((3, 3), (3, 3))  # samples: a row a rank (k), an entry a micro-batch (K)
    widths: tuple[int, ...] = (3, 4, 1)
    tied: bool = False  # two more layers that share a weight
    frozen: int | None = None  # which tensor does not train
    wrap: str = "each"  # which layers are units of their own: each, first, none
    dtype: str = "float64"
    optimizer: str = "sgd"
    clip: bool = False
    ring: bool = False  # a reduce-scatter by the ring, else gloo's
    cap_bytes: int = 1
    reshard: bool = True
    prefetch: int = 0
    sync: str = "each"  # FSDP reduces each micro-batch's gradients, or the last one's sum
    seed: int = 0

    @property
    def k(self):
        return len(self.counts)

    @property
    def K(self):
        return len(self.counts[0])


@st.composite
def a_case(draw):
    k, K = draw(st.sampled_from([2, 3, 4, 5, 2, 3])), draw(st.sampled_from([1, 2, 1, 3]))
    counts = st.integers(0, 7)
    rows = draw(st.tuples(*[st.tuples(*[counts] * K)] * k).filter(lambda rows: any(map(any, rows))))
    widths = tuple(draw(st.lists(st.integers(1, 13), min_size=2, max_size=3)))
    tied = draw(st.booleans())
    tensors = 2 * (len(widths) - 1) + (3 if tied else 0)
    return Case(
        counts=rows,
        widths=widths,
        tied=tied,
        frozen=draw(st.none() | st.integers(0, tensors - 1)),
        wrap=draw(st.sampled_from(["each", "first", "none"])),
        dtype=draw(st.sampled_from(["float64", "float64", "float32", "bfloat16"])),
        optimizer=draw(st.sampled_from(["sgd", "adamw"])),
        clip=draw(st.booleans()),
        ring=draw(st.booleans()),
        cap_bytes=draw(st.sampled_from([1, 64, 500, 4000, 1 << 20])),
        reshard=draw(st.booleans()),
        prefetch=draw(st.integers(0, 2)),
        sync=draw(st.sampled_from(["each", "last"])),
        seed=draw(st.integers(0, 99)),
    )


class Net(nn.Module):
    """Layers of odd sizes and a number of the model's own, which belongs to no layer."""

    def __init__(self, case):
        super().__init__()
        torch.manual_seed(case.seed)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(case.widths))
        if case.tied:
            self.layers.extend(nn.Linear(case.widths[-1], case.widths[-1]) for _ in range(2))
            self.layers[-1].weight = self.layers[-2].weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        if case.frozen is not None:
            list(self.layers.parameters())[case.frozen].requires_grad_(False)
        self.to(DTYPES[case.dtype])

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.scale * x

    def units(self, case):
        return list(self.layers)[: {"each": None, "first": 1, "none": 0}[case.wrap]]


def samples(case, step):
    """Every rank's micro-batches, of which the ranks and the one process take their own."""
    draw = torch.Generator().manual_seed(1000 * case.seed + step)
    return [[torch.randn(n, case.widths[0], generator=draw).to(DTYPES[case.dtype]) for n in row] for row in case.counts]


def loss_of(model, x, case):
    """This micro-batch's part of the mean over all samples of the step, wherever they are."""
    return (model(x) - 0.3).square().sum() / sum(map(sum, case.counts))


def make_optimizer(case):
    if case.optimizer == "sgd":
        return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.02, weight_decay=0.1)


MAX_NORM = 0.05


def flat(tensors):
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def one_process(case):
    model = Net(case)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(case)(trained)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.cat(sum(samples(case, step), [])), case).backward()
        if case.clip:
            clip_grad_norm_(trained, MAX_NORM)
        optimizer.step()
    return flat(model.parameters()).double().numpy()


class Replicated:
    """Plain training around one of the all-reduces of ddp.py."""

    def __init__(self, case, how):
        self.case, self.how, self.model = case, how, Net(case)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(case)(self.trained)
        self.buckets = BucketedGradients(self.model, cap_bytes=case.cap_bytes) if how == "buckets" else None

    def backward(self, loss, *, last):
        loss.backward()
        if self.how == "buckets":
            self.buckets.finish()
        elif last:
            {"per tensor": all_reduce_gradients, "flat": all_reduce_flat}[self.how](self.model)

    def step(self):
        if self.case.clip:
            clip_grad_norm_(self.trained, MAX_NORM)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def whole(self):
        return flat(self.model.parameters())

    def formula(self):
        buckets, times = {
            "per tensor": ([[p] for p in self.trained], 1),
            "flat": ([self.trained], 1),
            "buckets": (fill_buckets(self.trained[::-1], self.case.cap_bytes), self.case.K),
        }[self.how]
        return times * sum(all_reduced(sum(p.numel() for p in bucket), self.trained[0]) for bucket in buckets)


class Staged:
    def __init__(self, case, stage):
        self.case, self.stage, self.model = case, stage, Net(case)
        self.zero = zero.STAGES[stage](
            self.model,
            optimizer=make_optimizer(case),
            layers=self.model.units(case),
            max_norm=MAX_NORM if case.clip else None,
            reduce_scatter=(lambda shard, whole: shard.copy_(ring.reduce_scatter(whole)))
            if case.ring
            else zero.reduce_scatter,
        )

    def backward(self, loss, *, last):
        self.zero.backward(loss)

    def step(self):
        self.zero.step()

    def whole(self):
        zero.fetch(self.zero.units)
        return flat(self.model.parameters())

    def formula(self):
        """zero_bytes, and the headers beside it; gloo's reduce-scatter is an all-reduce inside."""
        case, sent = self.case, 0
        for unit in self.zero.units:
            size, P = len(unit.whole), len(unit.whole) * unit.whole.element_size()
            scatters = case.K if self.stage >= 2 else 1
            gathers = {0: 0, 1: 1, 2: 1, 3: 2 * case.K}[self.stage]
            if not unit.trains:  # stage 3 gathers it, too, to use it; nothing else happens to it
                sent += gathered(P, times=gathers) if self.stage == 3 else 0
            elif self.stage == 0:
                sent += all_reduced(size, unit.whole)
            elif case.ring:
                sent += traffic.zero_bytes(P, case.k, stage=self.stage, accumulation_steps=case.K)
                sent += headers(messages=scatters + 2 * gathers)
            else:
                sent += scatters * all_reduced(size, unit.whole) + gathered(P, times=gathers)
        if case.clip and self.stage >= 1:  # the sum of squares
            sent += all_reduced(1, torch.zeros((), dtype=torch.float64))
        return sent


class Sharded:
    def __init__(self, case):
        self.case, self.model = case, Net(case)
        own = {"reduce_scatter": ring.reduce_scatter} if case.ring else {}
        self.frozen = [p for p in self.model.parameters() if not p.requires_grad]
        self.fsdp = FullySharded(
            self.model,
            layers=self.model.units(case),
            reshard_after_forward=case.reshard,
            prefetch=case.prefetch,
            **own,
        )
        self.optimizer = make_optimizer(case)(self.fsdp.shards())

    def backward(self, loss, *, last):
        self.fsdp.sync = last or self.case.sync == "each"
        self.fsdp.backward(loss)

    def step(self):
        if self.case.clip:
            square = sum(shard.grad.double().square().sum() for shard in self.fsdp.shards())
            dist.all_reduce(square)
            for shard in self.fsdp.shards():
                shard.grad *= min(1.0, MAX_NORM / (square.sqrt().item() + 1e-6))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def whole(self):
        for group in self.fsdp.groups:
            unshard(group)
        found = flat(self.model.parameters())
        for group in self.fsdp.groups:
            reshard(group)
        return found

    def formula(self):
        case, sent = self.case, 0
        scatters = case.K if case.sync == "each" else 1
        of_model = self.fsdp.groups[-1]  # holds the number that belongs to no layer: there from forward to backward
        for group in self.fsdp.groups:
            mine = sum(shard.numel() for shard in group.shards)
            P = case.k * mine * group.shards[0].element_size()
            gathers = case.K * (2 if case.reshard and group is not of_model else 1)
            sent += gathered(P, times=gathers)
            if case.ring:
                sent += scatters * (traffic.reduce_scatter_bytes(P, case.k) + headers(messages=1))
            else:
                sent += scatters * all_reduced(case.k * mine, group.shards[0])
        return sent + (all_reduced(1, torch.zeros((), dtype=torch.float64)) if case.clip else 0)


def all_reduced(elements, like):
    return sum(
        traffic.gloo_all_reduce(elements, dist.get_world_size(), element_size=like.element_size())[dist.get_rank()]
    )


def gathered(payload, *, times):
    return times * traffic.all_gather_bytes(payload, dist.get_world_size()) + headers(messages=2 * times)


def headers(*, messages):
    """Of so many messages to each other rank: gloo's all-gather cuts what a rank owns in two, a ring does not."""
    return 3 * traffic.HEADER * (dist.get_world_size() - 1) * messages


IMPLEMENTATIONS = {
    "per tensor": lambda case: Replicated(case, "per tensor"),
    "flat": lambda case: Replicated(case, "flat"),
    "buckets": lambda case: Replicated(case, "buckets"),
    **{f"stage {stage}": lambda case, stage=stage: Staged(case, stage) for stage in range(4)},
    "fsdp": Sharded,
}


def train(cases):
    """Every implementation on every case: {name: (all parameters at the end, bytes sent in a step, the formula's)}."""
    counters = Counters()
    for case in cases:
        found = {}
        for name, make in IMPLEMENTATIONS.items():
            try:
                found[name] = trained_by(make(case), case, counters)
            except Exception as error:  # of all its cases the launcher would not know which one
                raise RuntimeError(f"{name} raised {type(error).__name__}: {error}, in {case}") from error
        yield found


def trained_by(engine, case, counters):
    for step in range(STEPS):
        if step == STEPS - 1:
            counters.since_last()
        for number, x in enumerate(samples(case, step)[dist.get_rank()]):
            # everyone's are averaged: so this is k times this rank's part of the mean over all
            engine.backward(loss_of(engine.model, x, case) * case.k, last=number == case.K - 1)
        engine.step()
    sent, _ = counters.since_last()
    expected = engine.formula()
    return engine.whole().double().numpy(), sent, expected


def why_wrong(cases):
    """Run the cases on their ranks; return a sentence for everything that is not as it must be."""
    wrong = []
    for k in sorted({case.k for case in cases}):
        mine = [case for case in cases if case.k == k]
        run = launch(train, mine, world_size=k, timeout=20)
        for case, *ranks in zip(mine, *run.records, strict=True):
            wrong += [f"{sentence}, in {case}" for sentence in judged(case, ranks, run.environment.wire)]
    return wrong


def judged(case, ranks, how):
    alone, parameters = one_process(case), {name: found[0] for name, found in ranks[0].items()}
    for rank, found in enumerate(ranks):
        for name, (vector, sent, expected) in found.items():
            if vector.tobytes() != parameters[name].tobytes():
                yield f"{name}: rank {rank} does not hold the parameters of rank 0"
            if how == MEASURED and sent != expected:
                yield f"{name}: rank {rank} sent {sent} bytes in a step, the formula says {expected}"
    for name, vector in parameters.items():
        apart = abs(vector - alone).max()
        if not apart <= TOLERANCE.get(case.dtype, float("inf")):
            yield f"{name}: {apart:.1e} away from one process"
    # the same sums in the same order: not a bit may differ
    same = [("stage 2", "stage 3")] + [("stage 1", "stage 2")] * (case.K == 1)
    for one, other in same:
        if parameters[one].tobytes() != parameters[other].tobytes():
            yield f"{other} is not {one} to the bit"


FOUND = [  # what this file has found, and what was wrong
    Case(frozen=0),  # ddp.py asked a frozen parameter for its gradient
    Case(counts=((1,), (2,)), wrap="first", prefetch=1),  # fsdp.py gathered ahead what backward was done with
]


@REPEATABLE
@example(cases=FOUND)
@given(cases=st.lists(a_case(), min_size=CASES, max_size=CASES))
def test_every_implementation_trains_as_one_process_and_sends_what_the_formula_says(cases):
    wrong = why_wrong(cases)
    assert not wrong, "\n".join(wrong)  # each with its whole case


def test_a_layer_that_a_step_does_without_is_not_old_in_the_next_one():
    """Its output does not reach the loss in every other step: its gradient is 0, and its momentum goes on."""

    def losses(how):
        torch.manual_seed(0)
        layers, found = nn.ModuleList(nn.Linear(5, 5) for _ in range(3)).double(), []
        optimizer = step = None
        sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
        if how == "one process":
            optimizer, backward = sgd(layers.parameters()), torch.Tensor.backward
        elif how.startswith("stage"):
            engine = zero.STAGES[int(how[-1])](layers, optimizer=sgd, layers=layers)
            backward, step = engine.backward, engine.step
        else:
            engine = FullySharded(layers, layers=layers, prefetch=int(how[-1]))
            optimizer, backward = sgd(engine.shards()), engine.backward
        x = torch.linspace(-1, 1, 15, dtype=torch.float64).view(3, 5)
        for number in range(5):
            outputs = [layer(x) for layer in layers]
            loss = (sum(outputs[number % 2 :]) - 1).square().mean()
            backward(loss)
            step = step or optimizer.step
            step()
            if optimizer:
                optimizer.zero_grad(set_to_none=False)
            found.append(loss.item())
        return found

    expected = losses("one process")
    hows = [f"stage {stage}" for stage in range(4)] + [f"fsdp, prefetch {ahead}" for ahead in range(3)]
    for ranks in launch(lambda _: [losses(how) for how in hows], world_size=2, timeout=20).results:
        for how, found in zip(hows, ranks, strict=True):
            assert found == pytest.approx(expected, abs=1e-12), how


LENGTHS = st.lists(
    st.tuples(st.integers(2, 5), st.integers(0, 40) | st.integers(0, 5000), st.sampled_from([*DTYPES, "int64"])),
    min_size=20,
    max_size=20,
)


def reduce_all(cases):
    """For each (length, dtype): the sum by the ring, the naive way and torch, and the bytes that these sent."""
    counters = Counters()
    for length, dtype in cases:
        # small whole numbers: their sums are exact in every dtype
        draw = torch.Generator().manual_seed(10 * length + dist.get_rank())
        handed_in = torch.randint(-3, 4, (length,), generator=draw).to(getattr(torch, dtype))
        found, sent = [], []
        for function in (ring.all_reduce, ring.naive_all_reduce, dist.all_reduce):
            tensor = handed_in.clone()
            counters.since_last()
            if length or function is not dist.all_reduce:  # gloo has no all-reduce of nothing
                function(tensor)
            sent.append(counters.since_last()[0])
            found.append(tensor.double().tolist())
        yield {"found": found, "sent": sent, "size": handed_in.element_size()}


@REPEATABLE
@given(cases=LENGTHS)
def test_a_ring_of_any_length_gives_torchs_sum_and_sends_all_chunks_but_two(cases):
    for k in sorted({k for k, *_ in cases}):
        mine = [rest for one, *rest in cases if one == k]
        run = launch(reduce_all, mine, world_size=k, timeout=20)
        for (length, dtype), *ranks in zip(mine, *run.records, strict=True):
            case = f"in {(k, length, dtype)}"
            chunks = [len(chunk) for chunk in torch.empty(length).tensor_split(k)]
            for rank, of in enumerate(ranks):
                assert of["found"] == [ranks[0]["found"][-1]] * 3, case
                if run.environment.wire == MEASURED:
                    # scattering all but its own, gathering all but its neighbour's
                    elements = 2 * length - chunks[rank] - chunks[(rank + 1) % k]
                    assert of["sent"][0] == elements * of["size"] + 2 * (k - 1) * 3 * traffic.HEADER, case
                    copies = k - 1 if rank == 0 else 1
                    assert of["sent"][1] == copies * (length * of["size"] + 3 * traffic.HEADER), case
                    if length:
                        expected = traffic.gloo_all_reduce(length, k, element_size=of["size"])[rank]
                        assert of["sent"][2] == sum(expected), case
