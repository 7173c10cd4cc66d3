"""The contract as a table: what is on record in each category, what was checked, and what it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpviz.contract import check, document
from dpviz.records import Run


@dataclass(frozen=True, kw_only=True)
class Row:
    """One category: `recorded` in words, the names of the checks `made`, the `violations` among them."""

    category: str
    recorded: str
    made: list[str]
    violations: list[check.Violation]

    def verdict(self) -> str:
        """Return the first violation in full and the names of the others, or the checks that found nothing."""
        if self.violations:
            first, *others = self.violations
            return f"✗ {first}" + (f"; then {', '.join(one.check for one in others)}" if others else "")
        return f"✓ {', '.join(self.made)}" if self.made else "– nothing to check it by"


def rows(source: Run | dict | str | Path) -> list[Row]:
    """Return the eight categories of a contract. Raises ValueError as check_contract does."""
    contract = document.read(source)
    made, found = check.made(contract), check.check_contract(contract)
    return [
        Row(
            category=category,
            recorded=_in_words(category, contract[category]),
            made=made[category],
            violations=[violation for violation in found if violation.category == category],
        )
        for category in document.CATEGORIES
    ]


def contract_table(source: Run | dict | str | Path):
    """Return the contract as a pandas DataFrame: a row a category. Raises ValueError as check_contract does. Built in
    lesson 11.
    """
    import pandas

    table = [{"category": row.category, "on record": row.recorded, "verdict": row.verdict()} for row in rows(source)]
    return pandas.DataFrame(table).set_index("category")


def _in_words(category: str, said: dict[str, Any]) -> str:
    """What somebody recorded, in a line or two."""
    return "; ".join(filter(None, WORDS[category](said))) or "not recorded"


def _topology(said: dict) -> Iterator[str]:
    yield f"{said['world_size']} rank{'s' * (said['world_size'] > 1)}, {said['backend']}, {said['launcher']}"
    yield " x ".join(f"{axis} {size}" for axis, size in (said["axes"] or {}).items())


def _data(said: dict) -> Iterator[str]:
    versions = said["versions"] or []
    yield _if(said["name"], f"{said['name']}" + ", version " * bool(versions) + " and ".join(dict.fromkeys(versions)))
    yield _each_rank(said["samples"], "samples")
    yield _each_rank(said["tokens"], "tokens")
    yield _if(said["mask"], f"mask: {said['mask']}")


def _batch(said: dict) -> Iterator[str]:
    yield _if(said["micro_batch"], f"B = {said['micro_batch']}, K = {said['accumulation_steps']}")
    yield _if(said["global_samples"], f"{said['global_samples']} samples an update by the product")
    yield _if(said["counted_samples"], f"{said['counted_samples']} counted")
    yield _if(said["global_tokens"], f"{said['global_tokens']} tokens")


def _loss(said: dict) -> Iterator[str]:
    yield _if(said["reduction"], f"{said['reduction']}" + _if(said["divided_by"], f" over {said['divided_by']}"))
    yield _if(said["selection"], f"what enters: {said['selection']}")


def _communication(said: dict) -> Iterator[str]:
    for name in dict.fromkeys(name for of_rank in said["calls"] or [] for name in of_rank):
        yield _each_rank([of_rank.get(name, 0) for of_rank in said["calls"]], name)
    yield _each_rank(said["bytes_sent"], f"bytes sent ({said['bytes'].partition(':')[0]})")
    buckets = len(said["bucket_bytes"] or [])
    yield _if(buckets, f"{buckets} bucket{'s' * (buckets > 1)}")
    yield _if(said["overlap"] is not None, f"{100 * (said['overlap'] or 0):.0f} % hidden behind backward")


def _update(said: dict) -> Iterator[str]:
    yield _if(said["optimizer"], f"{said['optimizer']}" + _if(said["lr"] is not None, f", lr {said['lr']}"))
    schedule, clipping, scale = said["schedule"], said["clipping"], said["loss_scale"]
    yield _if(schedule, f"{schedule and schedule['kind']} over {schedule and schedule['steps']} steps")
    yield _if(clipping, "clipped to " + ", ".join(f"{value}" for value in (clipping or {}).values()))
    yield _if(scale, "loss scale " + ", ".join(f"{name} {value}" for name, value in (scale or {}).items()))


def _consistency(said: dict) -> Iterator[str]:
    steps = said["steps"]
    yield _if(steps, f"{len(steps and steps[0]['values'])} fingerprints a rank in each of {len(steps)} steps")


def _recoverability(said: dict) -> Iterator[str]:
    for one in said["checkpoints"] or []:
        yield f"resumed before step {one['step']} from version {' and '.join(map(str, dict.fromkeys(one['versions'])))}"
    yield _if(said["data_progress"], f"{said['data_progress']} samples read")
    yield _if(said["random_state"], "random state of each rank")
    yield _if(said["seed"] is not None, f"seed {said['seed']}")


WORDS = {
    "topology": _topology,
    "data": _data,
    "batch": _batch,
    "loss": _loss,
    "communication": _communication,
    "update": _update,
    "consistency": _consistency,
    "recoverability": _recoverability,
}


def _each_rank(counts: list[int] | None, of_what: str) -> str:
    """Such as "64 samples a rank", or "40 to 160 tokens a rank" where ranks differ."""
    if not counts:
        return ""
    low, high = min(counts), max(counts)
    return f"{low:,} {of_what} a rank" if low == high else f"{low:,} to {high:,} {of_what} a rank"


def _if(there: Any, text: str) -> str:
    return text if there else ""
