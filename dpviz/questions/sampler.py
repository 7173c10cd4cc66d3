"""Which samples does each rank see? torch's DistributedSampler deals them out, one shuffled deck for all ranks.

It makes every rank's share equally long: it repeats samples from the start of the deck, or with drop_last leaves some
out.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import Question, choice, flag, whole


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    dataset_size: int = whole(10, low=1, high=10_000, help="samples in the data set, n")
    drop_last: bool = flag(False, help="leave out what does not divide by k, instead of repeating samples")
    set_epoch: str = choice(
        "yes",
        ("yes", "no", "mismatched"),
        help="call set_epoch before each epoch, never, or with another number on each rank",
    )

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        of_epoch = [result["epochs"][0] for result in run.results]
        repeated = sum(map(len, of_epoch)) - len(set().union(*of_epoch))
        return {"data": {"samples": [len(of_rank) for of_rank in of_epoch], "repeated": repeated}}

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return what the ranks saw in the first epoch, and whether the second differs.

        indices              the samples of each rank, in order; samples_per_rank how many these are
        repeated, missing    samples that were seen more than once, and not at all
        same_order_again     whether every rank's second epoch is its first again
        accuracy_read        if just the repeated samples are classified right: what the ranks' counts give;
                             accuracy_true is the truth, and both are None where nothing was repeated
        """
        first = [result["epochs"][0] for result in run.results]
        times = collections.Counter(index for of_rank in first for index in of_rank)
        repeated = sorted(index for index, count in times.items() if count > 1)
        size = run.config["dataset_size"]
        return {
            "indices": first,
            "samples_per_rank": [len(of_rank) for of_rank in first],
            "samples": sum(times.values()),
            "repeated": repeated,
            "missing": sorted(set(range(size)) - set(times)),
            "same_order_again": all(result["epochs"][0] == result["epochs"][1] for result in run.results),
            "accuracy_read": sum(times[index] for index in repeated) / sum(times.values()) if repeated else None,
            "accuracy_true": len(repeated) / size if repeated else None,
        }
