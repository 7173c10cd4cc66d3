"""How many bytes of model state a rank holds, term by term, under each ZeRO stage.

Terms: N is the number of parameters, k the number of ranks. Model state is everything that training keeps for a
parameter: the parameter, its gradient, what the optimizer remembers and, in mixed precision, the float32 copy that it
updates ("master"). Activations are another account, which no stage divides. 1 GB is 10^9 bytes.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models" (2020), section 3.1
(2 + 2 + 12 bytes a parameter) and figure 1 (what each stage divides by k).
"""

from __future__ import annotations

from typing import NamedTuple

STAGES = (0, 1, 2, 3)
GB = 10**9
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
_MOMENTS = {"sgd": 0, "adamw": 2}  # tensors that the optimizer keeps for a parameter


class State(NamedTuple):
    """Bytes, of one parameter or of all that a rank holds."""

    parameters: int
    gradients: int
    optimizer: int
    master: int

    @property
    def total(self):
        return sum(self)


def bytes_a_parameter(*, mixed_precision, optimizer="adamw", dtype="float32") -> State:
    """In mixed precision with AdamW 2 + 2 + 8 + 4 = 16: bfloat16 parameters and gradients, float32 master, m and v.

    In `dtype` alone there is no master: float32 with AdamW is 4 + 4 + 8 = 16 as well, but only 8 of it are the
    optimizer's. Raises ValueError for an unknown name.
    """
    for name, value, known in (("optimizer", optimizer, _MOMENTS), ("dtype", dtype, BYTES)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}, but must be one of {', '.join(known)}")
    if mixed_precision:
        return State(2, 2, 4 * _MOMENTS[optimizer], 4)
    item = BYTES[dtype]
    return State(item, item, item * _MOMENTS[optimizer], 0)


def model_state(parameters, k, *, stage, each=None) -> State:
    """Bytes that one rank holds of a model of `parameters`, between backward and the optimizer's step.

    parameters  N; or a list, the sizes of what is divided one by one (the layers): each is padded to a multiple of k
    stage       0: everything whole, 16 N        1: optimizer and master divided by k, 4 N + 12 N/k
                2: gradients too, 2 N + 14 N/k   3: parameters too, 16 N/k
    each        bytes a parameter, by default those of mixed precision with AdamW

    7e9 parameters on 8 ranks: 112, 38.5, 26.25 and 14 GB. Raises ValueError for an unknown stage, or k below 1.
    """
    if stage not in STAGES:
        raise ValueError(f"stage is {stage!r}, but must be 0, 1, 2 or 3")
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k is {k!r}, but must be a whole number of ranks, 1 or more")
    each = each or bytes_a_parameter(mixed_precision=True)
    sizes = [int(size) for size in (parameters if isinstance(parameters, list | tuple) else [parameters])]
    whole, part = sum(sizes), sum(-(-size // k) for size in sizes)
    divided_from = State(parameters=3, gradients=2, optimizer=1, master=1)
    return State(*(b * (part if stage >= first else whole) for b, first in zip(each, divided_from, strict=True)))


def wasted(parameters, k, *, each=None):
    """(k-1) 16 N bytes: what plain data parallelism holds more than once, over all ranks."""
    return (k - 1) * model_state(parameters, 1, stage=0, each=each).total


def smallest_world_size(parameters, room, *, each=None):
    """The least k at which stage 3 fits into `room` bytes a rank. Raises ValueError where there is no room at all."""
    if not room >= 1:
        raise ValueError(f"{room} bytes are left for the model state, but it needs more than 0")
    total = int(parameters) * (each or bytes_a_parameter(mixed_precision=True)).total
    return -(-total // int(room))
