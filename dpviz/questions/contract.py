"""Can you prove that your run is data parallel? The training run of `optimizer_state`, under contract."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from dpviz.contract.check import check_contract, made
from dpviz.questions import optimizer_state


@dataclass(frozen=True, kw_only=True)
class Config(optimizer_state.Config):
    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        parts = optimizer_state.Config.contract_parts(run)
        if parts and all(run.results):
            parts["data"]["versions"] = [result["data_version"] for result in run.results]
        return parts

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what the contract says of the run.

        violations   each check that fails, in the first step in which it does: {category, check, step, ranks, why}, the
                     likeliest cause first
        kept         whether there is none
        checked      {category: names of the checks that its evidence allowed}
        """
        found = [dataclasses.asdict(violation) for violation in check_contract(run)]
        return {"violations": found, "kept": not found, "checked": made(run.contract)}

    @staticmethod
    def facts_of_failure(run, error) -> dict[str, Any] | None:
        if optimizer_state.Config.facts_of_failure(run, error) is None:
            return None
        return Config.facts(run)
