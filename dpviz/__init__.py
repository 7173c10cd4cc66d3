"""dpviz: data parallelism, learned by changing it.

    import dpviz as dp
    run = dp.launch(experiment, config, world_size=4)      # real processes, real collectives
    run.facts, run.frame(), run.wire

Names are imported when first used; torch is imported only by what needs it.
"""

from __future__ import annotations

import importlib
import sys
import types

__version__ = "0.1.0"

_PUBLIC = {
    "Calculator": "calculator",
    "Environment": "records",
    "Event": "records",
    "Link": "ranks.link",
    "Panel": "panel",
    "Prediction": "predict",
    "RankError": "ranks.errors",
    "Run": "records",
    "Step": "records",
    "Stopped": "ranks.errors",
    "broken_run": "broken_run",
    "calculator": "calculator",
    "check_contract": "contract.check",
    "check_same_gradients": "checks",
    "check_same_trajectory": "checks",
    "collective_counts": "checks",
    "contract_table": "contract.table",
    "launch": "ranks.launch",
    "panel": "panel",
    "predict": "predict",
    "scoreboard": "score",
    "seed_by_rank": "seeds",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dpviz' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dpviz.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


class _Package(types.ModuleType):
    """The package itself: importing the module dpviz.panel must not put it in the place of the function dp.panel."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PUBLIC and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self):  # a cell's function that says dp.something travels to the ranks
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


if _in_notebook():  # the rank server imports torch while the first cells are read
    importlib.import_module("dpviz.ranks.jobs").warm()
