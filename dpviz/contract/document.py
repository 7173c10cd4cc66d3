"""The contract as a document: eight categories, made from a run and from what its question adds, read back from JSON.

What nobody recorded is None, and a check that would need it says so instead of passing. The categories are those of the
first course text, section 7: what a training run should put on record, so that "it is data parallel" can be checked.
"""

from __future__ import annotations

import collections
import hashlib
import importlib.resources
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpviz.contract.compare import SAME_EVERYWHERE
from dpviz.records import Collective, Run, Step, plain
from dpviz.wrong_value import WrongValue

VERSION = 1
MOST = 100  # characters of what a config of one's own calls its data, optimizer and the like
NUMBERS = ("step", "lr", "scaler", "tokens", "norm", "samples", "checksum")  # of what a rank records in a step
OF_RANKS = {
    "data": ("versions", "samples", "tokens"),
    "communication": ("calls", "bytes_sent"),
    "recoverability": ("random_state",),
}
CATEGORIES = (
    "topology",  # who takes part, and how data parallelism lies in the mesh
    "data",  # which samples each rank saw, of which version, under which mask
    "batch",  # what one update consumes
    "loss",  # what is summed, and what it is divided by
    "communication",  # which collectives ran, in which group, with how many bytes
    "update",  # clipping, optimizer, schedule, loss scale
    "consistency",  # fingerprints of every rank, step by step
    "recoverability",  # what a restart would begin from
)


def make(run: Run, more: dict[str, dict[str, Any]] | None = None, *, failure: Any = None) -> dict[str, Any]:
    """Return the contract of `run` in JSON's own types; `more` is what its question adds, category by category.
    `failure` is the RankError that ended it.
    """
    config, environment = run.config, run.environment
    ranks, pure = list(range(environment.world_size)), more is not None  # who has no question says nothing of axes
    B, K = _number(config, "micro_batch", int), _number({"accumulation_steps": 1} | config, "accumulation_steps", int)
    contract = {
        "topology": {
            "world_size": environment.world_size,
            "backend": environment.backend,
            "launcher": environment.launcher,
            "link": environment.link,
            "axes": {"dp": environment.world_size} if pure else None,
            "groups": {"dp": [ranks]} if pure else None,
        },
        "data": {
            "name": _text(config, "data"),
            "versions": None,
            "samples": None,
            "tokens": None,
            "mask": _text(config, "mask"),
        },
        "batch": {
            "micro_batch": B,
            "accumulation_steps": K,
            "counted_samples": None,
            "global_tokens": None,
        },
        "loss": {"reduction": _text(config, "reduction"), "divided_by": None, "selection": _text(config, "mask")},
        "communication": {
            "calls": None if failure else [_calls(issued) for issued in run.collectives],
            "sequences": None if failure else _sequences(run.collectives),
            "bytes_sent": None if failure else [wire.sent for wire in run.wire],
            "bytes": environment.wire,
            "algorithm": _text(config, "algorithm") or _text(config, "reduce_scatter") or environment.backend,
            "bucket_cap_mb": _number(config, "bucket_cap_mb", int | float),
            "bucket_bytes": None,
            "overlap": None,
            "failure": failure and {"ranks": failure.ranks, "step": _missing(run, failure.ranks), "why": failure.why},
        },
        "update": {
            "optimizer": _text(config, "optimizer"),
            "lr": _number(config, "lr", int | float),
            "dtype": _text(config, "dtype"),
            "schedule": None,
            "clipping": None,
            "loss_scale": None,
        },
        "consistency": {"steps": []},
        "recoverability": {
            "checkpoints": None,
            "data_progress": None,
            "random_state": None,
            "seed": _number(config, "seed", int),
        },
    }
    for category, fields in (more or {}).items():
        contract[category] |= fields
    axes = contract["topology"]["axes"]
    contract["batch"]["global_samples"] = B * K * axes["dp"] if B and K and axes else None
    return plain({"version": VERSION, "experiment": run.experiment, **contract})


def read(source: Run | dict | str | Path) -> dict[str, Any]:
    """Return the contract that `source` is, holds, or names the file of, checked against the schema.

    Raises ValueError for a file that is cut off or holds something else, and for a contract of another version.
    """
    contract, name = source, "the contract"
    if isinstance(source, str | Path):
        name = str(source)
        try:
            contract = json.loads(Path(source).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise WrongValue(f"there is no file {name}. Give one that holds a contract, or a saved run.") from None
        except (OSError, ValueError) as error:
            raise WrongValue(
                f"{name} does not hold a whole contract: {error}. It may be cut off. "
                "Write it again, by json.dump(run.contract, file) or run.save(path)."
            ) from error
    contract = contract.contract if isinstance(contract, Run) else contract
    if isinstance(contract, dict) and "facts" in contract:  # a saved run
        contract = contract.get("contract")
    if not isinstance(contract, dict) or "version" not in contract:
        raise WrongValue(f"{name} is no contract: it has no version. Give run.contract, a run, or a file of either.")
    if contract["version"] != VERSION:
        raise WrongValue(
            f"{name} is a contract of version {contract['version']!r}, and this dpviz reads version {VERSION}. "
            "Make it again with this dpviz, or read it with the one that wrote it."
        )
    _validate(contract, name)
    return contract


def schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) that every contract keeps."""
    return json.loads(importlib.resources.files("dpviz").joinpath("contract/schema.json").read_text(encoding="utf-8"))


def _validate(contract: dict, name: str) -> None:
    import jsonschema  # only here: a launch makes contracts without it

    try:
        jsonschema.validate(contract, schema())
    except jsonschema.ValidationError as error:
        where = ".".join(map(str, error.absolute_path)) or "the whole"
        raise WrongValue(
            f"{name} does not keep the schema of a contract, at {where}: {error.message[:200]}. "
            "Give what Run.contract holds, unchanged."
        ) from error
    k = contract["topology"]["world_size"]
    for where, what, values in _of_ranks(contract):
        odd = len(values) != k and f"has {len(values)} values for {k} ranks"
        if what in NUMBERS and not all(_is_number(value) for value in values):
            odd = "holds what is no number"
        if odd:
            raise WrongValue(
                f"{name} does not keep the schema of a contract: {where}{what} {odd}. "
                "Give what Run.contract holds, unchanged."
            )


def _of_ranks(contract: dict) -> Iterator[tuple[str, str, list]]:
    """Yield (where, name, values) of every list that has an entry a rank."""
    for category, names in OF_RANKS.items():
        yield from ((f"{category}, ", n, contract[category][n]) for n in names if contract[category][n] is not None)
    for one in contract["recoverability"]["checkpoints"] or []:
        yield from ((f"checkpoint of step {one['step']}, ", n, one[n]) for n in ("versions", "parts"))
    for step in contract["consistency"]["steps"]:
        yield from ((f"in step {step['number']}, ", n, values) for n, values in step["values"].items())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or value in ("NaN", "Infinity", "-Infinity")


def _number(config: dict, name: str, kind: Any) -> Any:
    """Return the value where it is such a number, else None: a config of one's own may call anything by that name."""
    value = config.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value) else None


def _text(config: dict, name: str) -> str | None:
    value = config.get(name)
    return value if value is None or isinstance(value, str) else str(value)[:MOST]


def _calls(issued: list[Collective]) -> dict[str, int]:
    return dict(collections.Counter(entry.name for entry in issued))


def _sequences(collectives: list[list[Collective]]) -> dict[str, dict[str, str]]:
    """Return {group: {rank: digest of the calls in order}}, from the first call on that every rank still remembers: of
    a long launch the last few hundred are kept.
    """
    said: dict[str, dict[str, list[Collective]]] = {}
    for rank, issued in enumerate(collectives):
        for entry in [one for one in issued if one.name in SAME_EVERYWHERE]:
            said.setdefault(entry.group, {}).setdefault(str(rank), []).append(entry)
    return {
        group: {
            rank: _digest(calls, since=max(one[0].number for one in of_rank.values()))
            for rank, calls in of_rank.items()
        }
        for group, of_rank in said.items()
    }


def _digest(calls: list[Collective], *, since: int) -> str:
    kept = [(one.name, one.shapes, one.dtypes) for one in calls if one.number >= since]
    return hashlib.sha256(repr(kept).encode()).hexdigest()[:16]


def _missing(run: Run, ranks: list[int]) -> int | None:
    """Return the first step that one of these ranks has no record of, None where nobody recorded steps."""
    recorded = [{record.step for record in records if isinstance(record, Step)} for records in run.records]
    last = max((step for of_rank in recorded for step in of_rank), default=None)
    return None if last is None else min(next(s for s in range(last + 2) if s not in recorded[rank]) for rank in ranks)
