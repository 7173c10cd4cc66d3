"""What a run leaves behind: plain dataclasses that a figure, a test or another machine can read.

Nothing here knows torch, processes or widgets. A `Run` holds one entry a rank in each of `results`, `records` and
`wire`; the figures take a `Run` and nothing else, so that one recorded on a cluster and loaded from a file is drawn
like one made just now.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dpviz.wrong_value import WrongValue

MEASURED = "measured: the kernel's TCP counters"
COUNTED = "counted, not measured"
ALONE = "one rank: nothing to send"

# torch's names of element types, as its flight recorder writes them
_ITEM_BYTES = {
    "Double": 8,
    "Float": 4,
    "BFloat16": 2,
    "Half": 2,
    "Long": 8,
    "Int": 4,
    "Short": 2,
    "Char": 1,
    "Byte": 1,
    "Bool": 1,
}
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a rank yields after one optimizer update: its number from 0, the rank's own loss, and anything else by
    name.
    """

    step: int
    loss: float | None = None
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that took time: `start_s` and `end_s` in seconds on the host's one monotonic clock, `lane` where it
    is drawn.
    """

    name: str
    start_s: float
    end_s: float
    lane: str = ""


@dataclass(frozen=True)
class Collective:
    """One collective a rank issued: `number` counts from 1 within its `group`; `shapes` and `dtypes` are those of its
    input; `ranks` are the group's, () where they are not known.
    """

    group: str
    number: int
    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    ranks: tuple[int, ...] = ()

    @property
    def payload(self) -> int:
        """Bytes of its input."""
        return sum(math.prod(shape) * _ITEM_BYTES[dtype] for shape, dtype in zip(self.shapes, self.dtypes, strict=True))

    def __str__(self) -> str:
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        return self.name + (f" of {shapes}" if shapes else "")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """Bytes one rank put on the wire and took from it during a run; `Environment.wire` says how they were obtained."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The conditions a number was measured under; `line()` is what every figure prints below its title.

    `link` says in words what the ranks talked over. `link_gbps` is the rate of each rank's interface, 10^9 bits a
    second in each direction, None where nothing limited it or it changed during the run; `link_latency_us` is the delay
    of what it sent. `device` says where the tensors lay, cpu or cuda. `hosts` is how many hosts the ranks were on; a
    network namespace of its own counts as one.
    """

    world_size: int
    backend: str
    launcher: str
    start_method: str
    cores: int
    link: str
    wire: str
    torch: str
    python: str
    platform: str
    link_gbps: float | None = None
    link_latency_us: float = 0.0
    device: str = "cpu"
    hosts: int = 1

    def line(self) -> str:
        if self.world_size == 1:
            ranks = "1 rank in this process"
        else:
            on_hosts = f" on {self.hosts} hosts" * (self.hosts > 1)
            ranks = f"{self.world_size} ranks{on_hosts}, {self.backend}" + f", {self.device}" * (self.device != "cpu")
        return f"{ranks}, {self.cores} core{'s' * (self.cores != 1)}{' a host' * (self.hosts > 1)}, {self.link}"


@dataclass(frozen=True, kw_only=True)
class Run:
    """One launch of an experiment.

    results      one entry a rank: what the experiment returned
    records      one list a rank: what it yielded
    wire         one `Wire` a rank
    collectives  one list a rank: the collectives it issued, the last few hundred
    prints       one list a rank: the lines it printed, up to the pool's limit
    contract     the data-parallel contract, eight categories filled from the above (see dpviz.contract)
    facts        the named numbers that the question's `facts(run)` made of the above
    """

    experiment: str
    config: dict[str, Any]
    results: list[Any]
    records: list[list[Any]]
    wire: list[Wire]
    environment: Environment
    collectives: list[list[Collective]] = field(default_factory=list)
    prints: list[list[str]] = field(default_factory=list)
    contract: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def frame(self):
        """Return the records as a tidy pandas DataFrame: a row a record, `rank` first, then `step`, `loss` and each
        named value.
        """
        import pandas

        rows = [{"rank": rank, **_columns(record)} for rank, records in enumerate(self.records) for record in records]
        return pandas.DataFrame(rows, columns=None if rows else ["rank", "step", "loss"])

    def answer(self) -> dict[str, Any]:
        """Return the object that the command line prints: what was asked, under which conditions, and what came out."""
        return plain(
            {
                "experiment": self.experiment,
                "config": self.config,
                "environment": self.environment,
                "facts": self.facts,
                "wire": self.wire,
            }
        )

    def save(self, path: str | Path) -> None:
        """Write the whole run as JSON. Raises ValueError where a result holds something that JSON cannot."""
        more = {
            "results": self.results,
            "records": self.records,
            "collectives": self.collectives,
            "prints": self.prints,
            "contract": self.contract,
        }
        text = json.dumps({**self.answer(), **plain(more)}, indent=1)
        Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run that `save` wrote. Arrays come back as lists, records as `Step`s. Raises ValueError if it is
        none.
        """
        try:
            saved = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                experiment=saved["experiment"],
                config=saved["config"],
                results=_restored(saved["results"]),
                records=[[_record(record) for record in of_rank] for of_rank in _restored(saved["records"])],
                wire=[Wire(**wire) for wire in saved["wire"]],
                environment=Environment(**saved["environment"]),
                collectives=[[_collective(entry) for entry in of_rank] for of_rank in saved["collectives"]],
                prints=saved["prints"],
                contract=saved.get("contract", {}),
                facts=_restored(saved["facts"]),
            )
        except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise WrongValue(
                f"{path} does not hold a run of dpviz: {type(error).__name__} {error}. "
                "Give a file that Run.save or --out wrote."
            ) from error


def plain(value: Any) -> Any:
    """Return `value` in JSON's own types: dataclasses as dicts, arrays and tensors as lists, inf and NaN as strings."""
    if isinstance(value, bool | int | str | None):
        return value
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise ValueError(
        f"a {type(value).__name__} cannot be written as JSON. "
        "Return numbers, strings, lists, dicts, arrays or dataclasses of these from the experiment."
    )


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    return value


def _columns(record: Any) -> dict[str, Any]:
    if isinstance(record, Step):
        return {"step": record.step, "loss": record.loss, **record.values}
    if dataclasses.is_dataclass(record):
        return dataclasses.asdict(record)
    return dict(record) if isinstance(record, dict) else {"value": record}


def _collective(saved: dict[str, Any]) -> Collective:
    shapes, dtypes = tuple(tuple(shape) for shape in saved["shapes"]), tuple(saved["dtypes"])
    return Collective(saved["group"], saved["number"], saved["name"], shapes, dtypes, tuple(saved.get("ranks", ())))


def _record(saved: Any) -> Any:
    for kind in (Step, Event):
        if isinstance(saved, dict) and set(saved) == {f.name for f in dataclasses.fields(kind)}:
            return kind(**saved)
    return saved
