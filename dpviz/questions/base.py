"""How a Config is declared, checked and read from text.

A question's Config is a frozen dataclass whose fields are made by `whole`, `number`, `choice`, `flag`, `numbers` and
`rows`.
From that one declaration come the check when it is made, the option of the command line, the control of a panel and
the line of the documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
from dataclasses import dataclass
from typing import Any

from dpviz.wrong_value import WrongValue

MAX_WORLD_SIZE = 32


DTYPES = ("float64", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class Field:
    """What is allowed in a field of a Config: `kind` is whole, number, choice, flag, list or rows.

    `list` is a list of numbers; on a command line 4096,65536. `rows` is a list of lists of numbers, a list a rank; on a
    command line 10,30/60,100. It may be left out (None) where its default is None. `low` and `high` bound each number.
    """

    name: str
    kind: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    options: tuple[str, ...] = ()
    integers: bool = False

    def allowed(self) -> str:
        if self.kind == "choice":
            return f"one of {', '.join(self.options)}"
        if self.kind == "flag":
            return "true or false"
        what = "whole numbers" if self.integers else "numbers"
        if self.kind == "list":
            low, high = _written([self.low]), _written([self.high])
            return f"a list of {what} from {low} to {high}, such as {_written(self.default)}"
        if self.kind == "rows":
            return f"rows of {what} from {self.low:g} to {self.high:g}, rank by rank, such as 10,30/60,100"
        return f"{'a whole number' if self.integers else 'a number'} from {self.low:g} to {self.high:g}"

    def check(self, value: Any) -> Any:
        """Return `value`: numbers as int or float, a list as a tuple, rows as a tuple of tuples. Raises ValueError with
        a sentence.
        """
        if self.kind == "rows" and value is None and self.default is None:
            return None
        if self.kind == "rows" and _is_rows(value) and all(self._is_allowed(number) for row in value for number in row):
            return tuple(tuple(number if self.integers else float(number) for number in row) for row in value)
        if self.kind == "list" and isinstance(value, list | tuple) and value and all(map(self._is_allowed, value)):
            return tuple(number if self.integers else float(number) for number in value)
        if self.kind in ("whole", "number") and self._is_allowed(value):
            return value if self.integers else float(value)
        if self.kind == "choice" and isinstance(value, str) and value in self.options:
            return value
        if self.kind == "flag" and isinstance(value, bool):
            return value
        near = difflib.get_close_matches(str(value), self.options, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise WrongValue(f"{self.name} is {_shown(value)}, but it must be {self.allowed()}.{hint}")

    def parse(self, text: str) -> Any:
        """Return the value that `text` (from a command line) stands for, checked. Raises ValueError with a sentence."""
        number = int if self.integers else float
        try:
            if self.kind == "rows":
                value = [[number(part) for part in row.split(",")] for row in text.split("/")]
            elif self.kind == "list":
                value = [number(part) for part in text.split(",")]
            elif self.kind in ("whole", "number"):
                value = number(text)
            else:
                value = {"true": True, "false": False}.get(text.lower(), text) if self.kind == "flag" else text
        except ValueError:
            value = text
        return self.check(value)

    def _is_allowed(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.integers else int | float):
            return False
        return self.low <= value <= self.high  # never so for NaN


def _is_rows(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(row, list | tuple) and row for row in value)
    )


def whole(default: int, *, low: int, high: int, help: str) -> Any:
    return _declare(default, kind="whole", low=low, high=high, integers=True, help=help)


def number(default: float, *, low: float, high: float, help: str) -> Any:
    return _declare(default, kind="number", low=low, high=high, help=help)


def choice(default: str, options: tuple[str, ...], *, help: str) -> Any:
    return _declare(default, kind="choice", options=tuple(options), help=help)


def flag(default: bool, *, help: str) -> Any:
    return _declare(default, kind="flag", help=help)


def numbers(default: Any, *, low: float, high: float, help: str, integers: bool = False) -> Any:
    return _declare(tuple(default), kind="list", low=low, high=high, help=help, integers=integers)


def rows(default: Any, *, low: float, high: float, help: str, integers: bool = False) -> Any:
    return _declare(default, kind="rows", low=low, high=high, help=help, integers=integers)


def _declare(default: Any, **allowed: Any) -> Any:
    return dataclasses.field(default=default, metadata={"allowed": allowed})


@dataclass(frozen=True, kw_only=True)
class Checked:
    """Checks each field when made; `replace(config, field=value)` checks again."""

    def __post_init__(self) -> None:
        for one in fields_of(type(self)):
            object.__setattr__(self, one.name, one.check(getattr(self, one.name)))


@dataclass(frozen=True, kw_only=True)
class Question(Checked):
    """Base of every experiment's Config."""

    seed: int = whole(0, low=0, high=2**31 - 1, help="seed of parameters and of the order of the data")
    dtype: str = choice("float32", DTYPES, help="type of parameters, gradients and what travels")

    def implied_world_size(self) -> int | None:
        """Return the number of ranks that the fields imply, None where they imply none."""
        return None

    def check_world_size(self, world_size: int) -> None:
        """Raise ValueError where this config cannot run on so many ranks."""
        implied = self.implied_world_size()
        if implied not in (None, world_size):
            raise WrongValue(
                f"world_size is {world_size}, but the fields describe {implied} ranks. Leave it out, or give {implied}."
            )

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        """Return what runs of this question put into the contract, category by category, beside what every run does."""
        return {}

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return the named numbers of a finished run; made in the launching process, so that no extra collective is
        measured.
        """
        return {}


def fields_of(config_class: type[Checked]) -> list[Field]:
    """Return the fields of a Config, its own first, then `dtype` and `seed`."""
    declared = [
        Field(name=f.name, default=f.default, **f.metadata["allowed"]) for f in dataclasses.fields(config_class)
    ]
    return sorted(declared, key=lambda one: ("dtype", "seed").index(one.name) if one.name in ("dtype", "seed") else -1)


def parse(config_class: type[Checked], texts: dict[str, str]) -> Checked:
    """Make a Config from the texts of a command line. Raises ValueError with a sentence for an unknown field or a
    wrong value.
    """
    known = {one.name: one for one in fields_of(config_class)}
    for name in texts:
        if name not in known:
            near = difflib.get_close_matches(name, [*known, "world_size"], 1)
            hint = f" Did you mean --{near[0].replace('_', '-')}?" if near else ""
            raise WrongValue(f"there is no field named {name!r} here. The fields are: {', '.join(known)}.{hint}")
    return config_class(**{name: known[name].parse(text) for name, text in texts.items()})


WORLD_SIZE = Field(
    name="world_size", kind="whole", default=4, low=1, high=MAX_WORLD_SIZE, integers=True, help="number of ranks, k"
)


def check_world_size(value: Any) -> int:
    """Return the number of ranks, given as a number or as text. Raises ValueError with a sentence."""
    return WORLD_SIZE.parse(value) if isinstance(value, str) else WORLD_SIZE.check(value)


def _written(values: Any) -> str:
    """(4096, 65536) as it is written on a command line: 4096,65536."""
    return ",".join(f"{value:.15g}" for value in values)


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write an int of thousands of digits
        text = "a very large number"
    return text if len(text) <= 60 else text[:57] + "..."
