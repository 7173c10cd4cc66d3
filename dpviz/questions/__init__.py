"""A question a file: its Config (what may be asked, checked when made) and its `facts(run)` (what was found).

No torch here, so that a wrong value is answered at once and the command line can list everything without waiting.
What the ranks run to answer a question stands under the same name in `dpviz.experiments`.
"""

from __future__ import annotations

import importlib

from dpviz.questions.base import WrongValue

# name -> (the function that every rank runs, one line for `python -m dpviz list`)
QUESTIONS = {
    "equivalence": ("dpviz.experiments.equivalence:experiment", "Do k ranks compute the gradient of the whole batch?"),
    "unequal": (
        "dpviz.experiments.unequal:experiment",
        "What if the ranks do not hold equally many samples, or tokens?",
    ),
    "accumulation": (
        "dpviz.experiments.accumulation:experiment",
        "What do K micro-batches cost, and how often must the ranks communicate?",
    ),
    "all_reduce": ("dpviz.experiments.all_reduce:experiment", "What does a collective cost, in bytes and in seconds?"),
    "sampler": ("dpviz.experiments.sampler:experiment", "Which samples does each rank see?"),
    "clipping": (
        "dpviz.experiments.clipping:experiment",
        "In which order may gradients be averaged, clipped and unscaled?",
    ),
    "buckets": ("dpviz.experiments.buckets:experiment", "How large should a bucket be?"),
    "zero": ("dpviz.experiments.zero:experiment", "Who needs to hold what, and what does it cost to fetch it?"),
    "fsdp": ("dpviz.experiments.fsdp:experiment", "Gather, use, scatter: can the loan hide behind the reading?"),
    "mesh": ("dpviz.experiments.mesh:experiment", "Which dimensions enter the global batch?"),
    "optimizer_state": (
        "dpviz.experiments.optimizer_state:experiment",
        "Which steps must be the same on every rank?",
    ),
    "contract": ("dpviz.experiments.contract:experiment", "Can you prove that your run is data parallel?"),
    "large_batch": ("dpviz.experiments.large_batch:experiment", "Is a batch k times larger just k times faster?"),
    "resume": (
        "dpviz.experiments.resume:experiment",
        "What must a checkpoint hold, so that a run goes on as if it had not been interrupted?",
    ),
}


def config_class(name: str):
    """Return the Config class of the question `name`. Raises ValueError with the known names."""
    if name not in QUESTIONS:
        raise WrongValue(
            f"there is no experiment named {name!r}. The experiments are: {', '.join(QUESTIONS)}. "
            "See python -m dpviz list."
        )
    return importlib.import_module(f"dpviz.questions.{name}").Config
