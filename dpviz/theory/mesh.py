"""Ranks arranged as a grid: which ones form a group along an axis.

Axes are given from the outermost to the innermost as {name: size}; ranks count through the innermost first, so that
its groups are neighbours. Megatron's usual order puts tensor parallelism there (it talks most, and neighbours share a
host) and pipeline stages outermost.

Source: Megatron-LM, megatron/core/parallel_state.py, default order "tp-cp-ep-dp-pp" (innermost first).
"""

from __future__ import annotations

from itertools import product


def groups(axes, names):
    """The ranks that differ along `names` (one axis, or several that are adjacent) and agree on all others: a list of
    lists, in order of rank. (("dp", 2), ("tp", 2)) along "dp" is [[0, 2], [1, 3]].
    """
    names = [names] if isinstance(names, str) else list(names)
    others = [name for name in axes if name not in names]
    strides, stride = {}, 1
    for name in reversed(axes):
        strides[name], stride = stride, stride * axes[name]

    def walk(some):
        places = product(*(range(axes[name]) for name in some))
        return [sum(at * strides[name] for at, name in zip(place, some, strict=True)) for place in places]

    return [[first + step for step in walk(names)] for first in walk(others)]
