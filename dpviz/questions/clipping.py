"""In which order may gradients be averaged, clipped and unscaled?

    average_then_clip       the gradient of the whole batch is clipped by its norm: the reference
    clip_then_average       each rank clips its own gradient, before the all-reduce
    clip_each_micro_batch   each rank clips what it has accumulated after every micro-batch
    clip_each_shard         the averaged gradient lies in shards, and each rank clips its shard by the shard's own norm
    clip_shards_together    each rank clips its shard by the norm of the whole, for which one number is all-reduced
    clip_before_unscale     the gradient of the scaled loss is clipped, and unscaled afterwards

With `gradients` each row is the gradient of a rank's one micro-batch (where shards are clipped: the rank's shard of the
average); without, an MLP on digits makes them, two micro-batches a rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpviz.questions.base import DTYPES, Question, WrongValue, choice, number, rows, whole

OF_SHARDS = ("clip_each_shard", "clip_shards_together")
ORDERS = ("average_then_clip", "clip_then_average", "clip_each_micro_batch", *OF_SHARDS, "clip_before_unscale")


@dataclass(frozen=True, kw_only=True)
class Config(Question):
    max_norm: float = number(1.0, low=0.0, high=1e9, help="the length that a gradient is clipped to")
    order: str = choice("average_then_clip", ORDERS, help="what comes first")
    gradients: tuple[tuple[float, ...], ...] | None = rows(
        None, low=-1e9, high=1e9, help="instead of a model: the gradient of each rank"
    )
    loss_scale: float = number(65536.0, low=1.0, high=2.0**40, help="the factor of the loss under clip_before_unscale")
    micro_batch: int = whole(2, low=1, high=256, help="samples in a micro-batch, where there are no gradients")
    dtype: str = choice("float64", DTYPES, help="type of parameters, gradients and what travels")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gradients is None:
            return
        if not self.rows_are_shards() and len({len(row) for row in self.gradients}) > 1:
            raise WrongValue(
                "the rows of gradients differ in length, but they are gradients of one model. Make them equal."
            )

    def rows_are_shards(self) -> bool:
        """Whether the rows of `gradients` are parts of one averaged gradient instead of a gradient a rank."""
        return self.gradients is not None and self.order in OF_SHARDS

    def implied_world_size(self) -> int | None:
        return None if self.gradients is None else len(self.gradients)

    @staticmethod
    def contract_parts(run) -> dict[str, dict[str, Any]]:
        return {"update": {"clipping": {"max_norm": run.config["max_norm"], "where": run.config["order"]}}}

    @staticmethod
    def facts(run) -> dict[str, Any]:
        """Return the update's gradient under this order, beside average_then_clip.

        norm, reference_norm   lengths of the two
        update, reference      the vectors themselves, where gradients were given
        local_norms            lengths of the ranks' own gradients, before anything else
        angle_degrees          between them; None where one of them is zero
        ranks_identical        whether every rank has the same, bit for bit
        """
        import numpy

        update, reference = (numpy.asarray(run.results[0][name]) for name in ("update", "reference"))
        norm, reference_norm = float(numpy.linalg.norm(update)), float(numpy.linalg.norm(reference))
        angle = None
        if norm and reference_norm:
            cosine = float(update @ reference) / norm / reference_norm
            angle = float(numpy.degrees(numpy.arccos(numpy.clip(cosine, -1, 1))))
        given = run.config["gradients"] is not None
        return {
            "norm": norm,
            "reference_norm": reference_norm,
            "angle_degrees": angle,
            "update": update.tolist() if given else None,
            "reference": reference.tolist() if given else None,
            "local_norms": [float(numpy.linalg.norm(result["local"])) for result in run.results],
            "ranks_identical": all(numpy.array_equal(result["update"], update) for result in run.results),
        }
