"""What courses ask of a student's DDP, bucketed DDP, sharded optimizer and FSDP, asked of ours: and that each question
would notice.

A check takes an implementation and raises AssertionError with a sentence. It must hold for ours, and for fakes planted
here, each wrong in one way that people really write, it must not. All of them train in one launch.
"""

import functools
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad_norm_

from dpviz.parallel import zero
from dpviz.parallel.ddp import BucketedGradients, all_reduce_gradients, broadcast_parameters
from dpviz.parallel.fsdp import FullySharded, reshard, unshard
from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import launch

RANKS, K, STEPS = 3, 2, 5
TOLERANCE = 1e-12
SHARE = 0.4  # of the whole: a third, and what padding adds to matrices as small as these


@dataclass(frozen=True)
class Setting:
    """How one training goes. AdamW forgives a gradient of the wrong scale, SGD a mean of parameters: hence both."""

    optimizer: str
    max_norm: float | None = None
    tied: bool = False
    frozen: bool = False
    seeded_by_rank: bool = False


SETTINGS = {
    "sgd": Setting("sgd"),
    "adamw": Setting("adamw"),
    "clipped": Setting("sgd", max_norm=0.05),  # of gradients of 2 to 3
    "tied": Setting("adamw", tied=True),
    "frozen": Setting("adamw", frozen=True),
    "seeded by rank": Setting("sgd", seeded_by_rank=True),
}
TIED, FROZEN = ("layers.1.weight", "layers.2.weight"), "layers.1.weight"


class Net(nn.Module):
    def __init__(self, setting, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList([nn.Linear(6, 9), nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 2)])
        self.register_buffer("shift", torch.randn(2))
        if setting.tied:
            self.layers[2].weight = self.layers[1].weight
        self.layers[1].weight.requires_grad_(not setting.frozen)
        self.double()

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x + self.shift


def batches(step):
    """The micro-batches of a step, (ranks, K, samples, features). The later the rank the larger its numbers, so that
    ranks have gradients of their own.
    """
    draw = torch.Generator().manual_seed(step)
    size = 1 + torch.arange(RANKS).view(-1, 1, 1, 1)
    return size * torch.randn(RANKS, K, 4, 6, generator=draw, dtype=torch.float64)


def loss_of(model, x):
    return model(x).square().mean()


def optimizer_of(setting):
    if setting.optimizer == "sgd":
        return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def tensors(model):
    """Everything by name, a tied weight under both of its names."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named}


# Ours. `shares` says of what a rank holds a part only


class Ddp:
    shares = ()

    def __init__(self, model, setting):
        self.model, self.max_norm = model, setting.max_norm
        self.start()
        self.wrap(optimizer_of(setting))

    def start(self):
        broadcast_parameters(self.model)  # none of the classes does that: they take the parameters that they are given

    def wrap(self, optimizer):
        self.optimizer = optimizer(trained(self.model))

    def update(self, batches):
        for x in batches:
            self.backward(self.scaled(loss_of(self.model, x)))
        self.reduce()
        self.clip()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def scaled(self, loss):
        return loss / K

    def backward(self, loss):
        loss.backward()

    def reduce(self):
        all_reduce_gradients(self.model)

    def clip(self):
        if self.max_norm:
            clip_grad_norm_(trained(self.model), self.max_norm)

    def whole(self):
        return tensors(self.model)


class BucketedDdp(Ddp):
    def wrap(self, optimizer):
        super().wrap(optimizer)
        self.buckets = BucketedGradients(self.model, cap_bytes=700)

    def backward(self, loss):
        loss.backward()
        self.buckets.finish()

    def reduce(self):
        """Nothing: it is done."""


class ShardedOptimizer(Ddp):
    shares = ("optimizer",)

    def wrap(self, optimizer):
        self.zero = zero.Stage1(self.model, optimizer=optimizer, layers=self.model.layers, max_norm=self.max_norm)
        self.optimizer = self.zero.optimizer

    def update(self, batches):
        for x in batches:
            self.zero.backward(self.scaled(loss_of(self.model, x)))
        self.zero.step()


class Fsdp(Ddp):
    shares = ("optimizer", "parameters")

    def wrap(self, optimizer):
        self.fsdp = FullySharded(self.model, layers=self.model.layers, prefetch=1)
        self.optimizer = optimizer(self.fsdp.shards())

    def backward(self, loss):
        self.fsdp.backward(loss)

    def reduce(self):
        """Nothing: it is done."""

    def clip(self):
        if self.max_norm:
            square = self.square()
            for shard in self.fsdp.shards():
                shard.grad *= min(1.0, self.max_norm / (square.sqrt() + 1e-6))

    def square(self):
        square = sum(shard.grad.square().sum() for shard in self.fsdp.shards())
        dist.all_reduce(square)
        return square

    def whole(self):
        for group in self.fsdp.groups:
            unshard(group)
        found = tensors(self.model)
        for group in self.fsdp.groups:
            reshard(group)
        return found


OURS = (Ddp, BucketedDdp, ShardedOptimizer, Fsdp)


# Fakes: ways to be wrong, put before one of ours


class ReducesNothing(Ddp):
    def reduce(self):
        pass


class AveragesParameters(Ddp):
    def reduce(self):
        pass

    def update(self, batches):
        super().update(batches)
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= RANKS


class SumsOverRanks(Ddp):
    def reduce(self):
        all_reduce_gradients(self.model, average=False)


class ForgetsK:
    def scaled(self, loss):
        return loss


class StartsAsItIs:
    def start(self):
        pass


class ClipsFirst(Ddp):
    def reduce(self):
        self.clip()
        super().reduce()


class ClipsEachShardByItsNorm(ShardedOptimizer):
    def wrap(self, optimizer):
        super().wrap(optimizer)
        self.zero.norm = functools.partial(zero.Stage0.norm, self.zero)


class ClipsEachFsdpShardByItsNorm(Fsdp):
    def square(self):
        return sum(shard.grad.square().sum() for shard in self.fsdp.shards())


class AveragesTheLast:
    """The gradients of the micro-batches before the last one stay where they were made."""

    def update(self, batches):
        parameters = trained(self.model)
        self.own = [torch.zeros_like(p) for p in parameters]
        for x in batches[:-1]:
            for own, found in zip(self.own, torch.autograd.grad(loss_of(self.model, x) / K, parameters), strict=True):
                own += found
        super().update(batches[-1:])

    def clip(self):  # comes after the averaging
        for parameter, own in zip(trained(self.model), self.own, strict=True):
            parameter.grad += own
        super().clip()


class ReducesTheLast:
    """The gradients of the micro-batches before the last one are lost."""

    def update(self, batches):
        super().update(batches[-1:])


class ShardsNoOptimizer(Ddp):
    shares = ShardedOptimizer.shares


class ShardsNothing(Ddp):
    shares = Fsdp.shares


class Unties(Ddp):
    def wrap(self, optimizer):
        layer = self.model.layers[2]
        layer.weight = nn.Parameter(layer.weight.detach().clone())
        super().wrap(optimizer)


class WakesTheFrozen(Ddp):
    def wrap(self, optimizer):
        for parameter in self.model.parameters():
            parameter.requires_grad_(True)
        super().wrap(optimizer)


def planted(*bases):
    return type("_".join(base.__name__ for base in bases), bases, {})


# Training: all in one launch


def bytes_held(engine):
    """Bytes that this rank holds between two updates, read from what the model and the optimizer really refer to."""
    updated = [p for group in engine.optimizer.param_groups for p in group["params"]]
    storages = {
        p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in [*engine.model.parameters(), *updated]
    }
    state = [value for of_one in engine.optimizer.state.values() for value in of_one.values()]
    return {"parameters": sum(storages.values()), "optimizer": sum(v.nbytes for v in state if v.ndim)}


def train(jobs):
    for make, name in jobs:
        try:
            found = trained_by(make, SETTINGS[name], dist.get_rank())
        except Exception as error:  # of all these jobs the launcher would not know which one
            raise RuntimeError(f"{make.__name__}, {name}: {type(error).__name__}: {error}") from error
        yield found


def trained_by(make, setting, rank):
    model = Net(setting, seed=rank if setting.seeded_by_rank else 0)
    built = tensors(model)
    engine = make(model, setting)
    after = [engine.whole()]  # wrapping, then each step
    # all five steps are asked of ours, and of what ours are compared with
    for step in range(STEPS if make in (*OURS, ReducesNothing) else 2):
        engine.update(batches(step)[rank])
        after.append(engine.whole())
    return {"built": built, "after": after, "held": bytes_held(engine)}


@functools.cache
def one_process(name):
    setting = SETTINGS[name]
    model, after = Net(setting, seed=0), []
    optimizer = optimizer_of(setting)(trained(model))
    after.append(tensors(model))
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, batches(step).flatten(0, 2)).backward()
        if setting.max_norm:
            clip_grad_norm_(trained(model), setting.max_norm)
        optimizer.step()
        after.append(tensors(model))
    state = [value for of_one in optimizer.state.values() for value in of_one.values()]
    parameters = sum(p.nbytes for p in model.parameters())
    return after, {"parameters": parameters, "optimizer": sum(v.nbytes for v in state if v.ndim)}


def everything():
    """{(implementation, setting): what each rank found} of all pairs that a test below needs."""
    found, error = launched()
    if error:
        raise error
    return found


@functools.cache
def launched():
    """The same, or the error that ended the launch: it is not to be tried again by each test."""
    jobs = [(ours, check.setting) for ours in OURS for check in CHECKS]
    jobs += [(fake, check.setting) for fake, sentences, _ in FAKES for check in sentences]
    jobs += [(fake, check.setting) for fake, _, passed in FAKES for check in passed]
    jobs = list(dict.fromkeys(jobs))
    try:
        records = launch(train, jobs, world_size=RANKS, timeout=30).records
    except RankError as error:
        return None, error
    return {job: list(of_ranks) for job, *of_ranks in zip(jobs, *records, strict=True)}, None


# Checks


def check(setting):
    def with_setting(function):
        @functools.wraps(function)
        def of(implementation):
            function(everything()[implementation, setting], setting)

        of.setting = setting
        return of

    return with_setting


def furthest(one, other):
    """(how far, the name of the tensor) where two sets of tensors differ most."""
    return max(((one[name] - other[name]).abs().max().item(), name) for name in one)


def ranks_agree(ranks, number, when):
    for rank, found in enumerate(ranks):
        apart, name = furthest(found["after"][number], ranks[0]["after"][number])
        assert apart == 0, f"{when}, {name} of rank {rank} is {apart:.1e} away from rank 0's"


@check("seeded by rank")
def starts_alike(ranks, setting):
    for found in ranks[1:]:
        assert furthest(found["built"], ranks[0]["built"])[0] > 0.1, "the ranks were built alike: this shows nothing"
    ranks_agree(ranks, 0, "after wrapping")
    assert furthest(ranks[0]["after"][0], ranks[0]["built"])[0] == 0, "after wrapping rank 0 is another model"


@check("sgd")
def differs_before_and_agrees_after(ranks, setting):
    naive = everything()[ReducesNothing, setting]
    for number in range(len(ranks[0]["after"]) - 1):
        changed, _ = furthest(ranks[0]["after"][number + 1], ranks[0]["after"][number])
        assert changed > 1e-3, f"update {number + 1} changed nothing"
        apart, _ = furthest(naive[1]["after"][number + 1], naive[0]["after"][number + 1])
        assert apart > 1e-3, "ranks that reduce nothing agree, too: this shows nothing"
        ranks_agree(ranks, number + 1, f"after update {number + 1}")


def like_one_process(ranks, setting):
    for number in range(len(ranks[0]["after"])):
        for rank, found in enumerate(ranks):
            apart, name = furthest(found["after"][number], one_process(setting)[0][number])
            assert apart <= TOLERANCE, (
                f"{setting}: after update {number}, {name} of rank {rank} is {apart:.1e} away from one process"
            )


@check("sgd")
def sgd_is_one_process(ranks, setting):
    like_one_process(ranks, setting)


@check("adamw")
def adamw_is_one_process(ranks, setting):
    like_one_process(ranks, setting)


@check("clipped")
def clips_as_one_process(ranks, setting):
    like_one_process(ranks, setting)


@check("tied")
def keeps_tied_weights(ranks, setting):
    for found in ranks:
        one, other = (found["after"][-1][name] for name in TIED)
        apart = (one - other).abs().max().item()
        assert apart == 0, f"{TIED[0]} and {TIED[1]} are no longer tied: {apart:.1e} apart"
    like_one_process(ranks, setting)


@check("frozen")
def leaves_the_frozen(ranks, setting):
    for found in ranks:
        moved = (found["after"][-1][FROZEN] - found["built"][FROZEN]).abs().max().item()
        assert moved == 0, f"the frozen {FROZEN} has moved by {moved:.1e}"
    like_one_process(ranks, setting)


def holds_its_share(implementation):
    whole = one_process("adamw")[1]
    for rank, found in enumerate(everything()[implementation, "adamw"]):
        for kind in implementation.shares:
            part = found["held"][kind] / whole[kind]
            assert part <= SHARE, f"rank {rank} of {RANKS} holds {part:.2f} of the {kind}"


holds_its_share.setting = "adamw"

CHECKS = (
    starts_alike,
    differs_before_and_agrees_after,
    sgd_is_one_process,
    adamw_is_one_process,
    clips_as_one_process,
    keeps_tied_weights,
    leaves_the_frozen,
    holds_its_share,
)

AWAY = r"after update 1, .* away from one process"
APART = r"after update 1, .* of rank 1 is .* away from rank 0's"
# (fake, {the check that finds it: what it says}, those that do not find it, which is why the others are there)
FAKES = [
    (ReducesNothing, {differs_before_and_agrees_after: APART}, [starts_alike]),
    (AveragesParameters, {adamw_is_one_process: AWAY}, [sgd_is_one_process, differs_before_and_agrees_after]),
    (SumsOverRanks, {sgd_is_one_process: AWAY}, [differs_before_and_agrees_after]),
    *((planted(ForgetsK, ours), {sgd_is_one_process: AWAY}, [differs_before_and_agrees_after]) for ours in OURS),
    *((planted(StartsAsItIs, ours), {starts_alike: "after wrapping, .* of rank 1"}, []) for ours in OURS),
    (ClipsFirst, {clips_as_one_process: AWAY}, [sgd_is_one_process]),
    (ClipsEachShardByItsNorm, {clips_as_one_process: AWAY}, [sgd_is_one_process]),
    (ClipsEachFsdpShardByItsNorm, {clips_as_one_process: AWAY}, [sgd_is_one_process]),
    *((planted(AveragesTheLast, ours), {differs_before_and_agrees_after: APART}, []) for ours in (Ddp, BucketedDdp)),
    *((planted(ReducesTheLast, ours), {sgd_is_one_process: AWAY}, [differs_before_and_agrees_after]) for ours in OURS),
    (ShardsNoOptimizer, {holds_its_share: "holds 1.00 of the optimizer"}, [adamw_is_one_process]),
    (ShardsNothing, {holds_its_share: "holds 1.00 of the optimizer"}, [adamw_is_one_process]),
    (Unties, {keeps_tied_weights: "are no longer tied"}, [sgd_is_one_process]),
    (WakesTheFrozen, {leaves_the_frozen: f"the frozen {FROZEN} has moved"}, [sgd_is_one_process]),
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("ours", OURS, ids=lambda ours: ours.__name__)
def test_ours(ours, check):
    check(ours)


@pytest.mark.parametrize(("fake", "sentences", "passed"), FAKES, ids=lambda of: getattr(of, "__name__", ""))
def test_each_fake_is_found_and_said(fake, sentences, passed):
    for check, sentence in sentences.items():
        with pytest.raises(AssertionError, match=sentence):
            check(fake)
    for check in passed:
        check(fake)
