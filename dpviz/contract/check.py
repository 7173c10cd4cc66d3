"""Whether a contract is kept, decided from what it holds and nothing else.

A check that lacks its evidence is not made; `made` tells which were. Checks of a step stand in the order in which a
cause comes before its consequences, so that the first violation is where to look first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dpviz.contract import compare, document
from dpviz.records import Run


@dataclass(frozen=True, kw_only=True)
class Violation:
    """What the contract breaks: in which category, found by which check, first in which step (None: in none), by which
    ranks.
    """

    category: str
    check: str
    step: int | None
    ranks: list[int]
    why: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class _OfStep:
    """A check of every step: `off` returns the ranks that break it, from the values that rank 0, 1, ... recorded.
    `words` come after "rank 2", `of_all` after "the ranks"; {theirs}, {others} and {due} are values.
    """

    category: str
    off: Callable[[list, dict, dict], list[int]]  # of the values, the step, and the contract
    words: str
    of_all: str = ""


def _unequal(values: list, step: dict, contract: dict) -> list[int]:
    return compare.unequal(values)


def _not_finite(values: list, step: dict, contract: dict) -> list[int]:
    return compare.not_finite(values)


def _shared(values: list, step: dict, contract: dict) -> list[int]:
    return compare.shared(values)


def _off_schedule(values: list, step: dict, contract: dict) -> list[int]:
    schedule = contract["update"]["schedule"]
    if schedule is None:
        return compare.unequal(values)
    return compare.off_schedule(values, updates=step["number"] + 1, schedule=schedule)


def _not_the_sum(values: list, step: dict, contract: dict) -> list[int]:
    due = _due("tokens", step, contract)
    return compare.unequal(values) if due is None else [rank for rank, n in enumerate(values) if n != due]


def _replica(what: str) -> _OfStep:
    return _OfStep("consistency", _unequal, f"had another {what} than the others", f"differed in their {what}")


OF_STEP = {
    "initial": _OfStep("consistency", _unequal, "started from other parameters", "started from different parameters"),
    "scaler": _OfStep("update", _unequal, "had loss scale {theirs}, the others {others}", "had loss scales {theirs}"),
    "step": _OfStep("update", _unequal, "had made {theirs} updates, the others {others}", "had made {theirs} updates"),
    "lr": _OfStep("update", _off_schedule, "had learning rate {theirs}, where the schedule gives {due}"),
    "tokens": _OfStep("loss", _not_the_sum, "divided the loss by {theirs}, where all ranks together hold {due}"),
    "norm": _OfStep("update", _not_finite, "clipped a gradient of length {theirs}"),
    "samples": _OfStep("data", _unequal, "read {theirs} samples, the others {others}", "read {theirs} samples"),
    "batch": _OfStep("data", _shared, "read the samples of another rank", "read the same samples"),
    "gradients": _replica("gradient after the all-reduce"),
    "optimizer": _replica("state of the optimizer"),
    "probe": _replica("value at a sampled place of the parameters"),
    "checksum": _replica("sum of all parameters"),
    "parameters": _replica("fingerprint of the parameters"),
    "dropout": _OfStep("consistency", _shared, "dropped the units of another rank", "dropped the same units"),
}
OF_RUN = ("axes", "groups", "data_version", "global_batch", "failure", "sequences", "checkpoint")
_BEFORE_STEPS = -1


def check_contract(source: Run | dict | str | Path) -> list[Violation]:
    """Return the violations of the contract that `source` is, holds or names the file of: each check once, in the first
    step in which it fails, the likeliest cause first. An empty list: whatever could be checked is as it must be.

    Raises ValueError for a file that is cut off, and for a contract of another version. Built in lesson 11.
    """
    contract = document.read(source)
    found = [*_of_run(contract), *_of_steps(contract)]
    order = [*OF_RUN, *OF_STEP]
    return sorted(found, key=lambda v: (_BEFORE_STEPS if v.step is None else v.step, order.index(v.check)))


def made(contract: dict) -> dict[str, list[str]]:
    """Return, for each category, the checks that its evidence allows."""
    allowed: dict[str, list[str]] = {category: [] for category in document.CATEGORIES}
    together = contract["topology"]["world_size"] > 1  # one rank has nobody to be compared with
    allowed["topology"] += ["axes", "groups"] * (contract["topology"]["axes"] is not None)
    data, batch, communication = contract["data"], contract["batch"], contract["communication"]
    allowed["data"] += ["data_version"] * (together and data["versions"] is not None)
    allowed["batch"] += ["global_batch"] * (None not in (batch["counted_samples"], batch["global_samples"]))
    allowed["communication"] += ["failure"] + ["sequences"] * (together and communication["sequences"] is not None)
    allowed["recoverability"] += ["checkpoint"] * (together and bool(contract["recoverability"]["checkpoints"]))
    steps = contract["consistency"]["steps"]
    for name, check in OF_STEP.items():
        of_steps = [step for step in steps if name in step["values"]]
        alone = name == "norm" or any(_due(name, step, contract) is not None for step in of_steps)
        allowed[check.category] += [name] * (bool(of_steps) and (together or alone))
    return allowed


def _of_run(contract: dict) -> Iterator[Violation]:
    topology, communication = contract["topology"], contract["communication"]
    k, ranks = topology["world_size"], list(range(topology["world_size"]))
    product = math.prod(topology["axes"].values()) if topology["axes"] else k
    if product != k:
        why = f"the axes {topology['axes']} make {product} ranks, but there are {k}"
        yield Violation(category="topology", check="axes", step=None, ranks=ranks, why=why)
    for axis, groups in (topology["groups"] or {}).items():
        if sorted(rank for group in groups for rank in group) != ranks:
            why = f"the groups of {axis} do not hold each rank once"
            yield Violation(category="topology", check="groups", step=None, ranks=ranks, why=why)
    if versions := contract["data"]["versions"]:
        if off := compare.unequal(versions):
            why = f"{_ranks(off)} read another version of the data"
            yield Violation(category="data", check="data_version", step=None, ranks=off, why=why)
    yield from _of_batch(contract)
    if failure := communication["failure"]:
        why = f"{_at(failure['step'])}{failure['why']}"
        yield Violation(
            category="communication", check="failure", step=failure["step"], ranks=failure["ranks"], why=why
        )
    of_groups = (communication["sequences"] or {}).values()
    other = [compare.minority({int(rank): calls for rank, calls in of_rank.items()}) for of_rank in of_groups]
    if off := sorted({rank for ranks in other for rank in ranks}):
        why = f"{_ranks(off)} called other collectives, or in another order"
        yield Violation(category="communication", check="sequences", step=None, ranks=off, why=why)
    yield from _of_checkpoints(contract)


def _of_batch(contract: dict) -> Iterator[Violation]:
    batch, axes = contract["batch"], contract["topology"]["axes"]
    B, K, said = batch["micro_batch"], batch["accumulation_steps"], batch["counted_samples"]
    dp = axes["dp"] if axes else None
    if None not in (B, K, said, dp) and said != dp * B * K:
        why = f"an update consumed {said} samples, but dp * B * K = {dp} * {B} * {K} = {dp * B * K}"
        ranks = list(range(contract["topology"]["world_size"]))
        yield Violation(category="batch", check="global_batch", step=None, ranks=ranks, why=why)


def _of_checkpoints(contract: dict) -> Iterator[Violation]:
    for one in contract["recoverability"]["checkpoints"] or []:
        versions, parts = one["versions"], [tuple(of_rank) for of_rank in one["parts"]]
        off = compare.unequal([*zip(versions, parts, strict=True)])
        if not off:
            continue
        everything = set().union(*parts)
        others = _each([version for rank, version in enumerate(versions) if rank not in off])
        old = [f"rank {r} from version {versions[r]}" for r in off if r in compare.unequal(versions)]
        lacking = [f"rank {r} without {', '.join(sorted(everything - {*parts[r]}))}" for r in off]
        lacking = [words for words in lacking if not words.endswith("without ")]
        why = f"{_at(one['step'])}the run was resumed by {', '.join(old + lacking)}"
        why += f", by the others from version {others} with all of it" if others else ""
        yield Violation(category="recoverability", check="checkpoint", step=one["step"], ranks=off, why=why)


def _of_steps(contract: dict) -> Iterator[Violation]:
    left = dict(OF_STEP)
    for step in contract["consistency"]["steps"]:
        for name, check in list(left.items()):
            if name not in step["values"] or (name == "dropout" and "norm" not in left):
                continue  # what is not a number was not dropped either
            values = [math.nan if value in ("NaN", None) else value for value in step["values"][name]]
            values = [float(value) if value in ("Infinity", "-Infinity") else value for value in values]
            if off := check.off(values, step, contract):
                del left[name]
                everybody = len(off) == len(values) > 1
                said = (check.of_all if everybody and check.of_all else check.words).format(
                    theirs=_each([values[rank] for rank in off]),
                    others=_each([value for rank, value in enumerate(values) if rank not in off]),
                    due=_each([_due(name, step, contract)]),
                )
                why = f"{_at(step['number'])}{'the ranks' if everybody else _ranks(off)} {said}"
                yield Violation(category=check.category, check=name, step=step["number"], ranks=off, why=why)


def _due(name: str, step: dict, contract: dict) -> float | int | None:
    """Return what a rank should have recorded, None where that is not known without the others."""
    schedule = contract["update"]["schedule"]
    if name == "lr" and schedule:
        return schedule["lr"] * compare.cosine(step["number"] + 1, schedule["steps"])
    if name == "tokens" and "samples" in step["values"]:
        return sum(step["values"]["samples"])
    return None


def _at(step: int | None) -> str:
    return "" if step is None else f"step {step}: "


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _each(values: list) -> str:
    return ", ".join(dict.fromkeys(f"{v:.6g}" if isinstance(v, float) else str(v) for v in values))
