"""What the figures of memory read in a run of `zero`."""

from dpviz.figures.kinds import STATE
from dpviz.theory import memory


def each_of(run) -> memory.State:
    """Bytes that one parameter costs: FSDP2's mixed precision keeps float32 in all that it holds."""
    config = run.config
    mixed = config["mixed_precision"] and config["implementation"] == "by_hand"
    return memory.bytes_a_parameter(mixed_precision=mixed, optimizer=config["optimizer"], dtype=config["dtype"])


def fullest(run) -> memory.State:
    """What the rank that holds the most of all holds."""
    return memory.State(**max(run.facts["bytes_per_rank"], key=lambda held: sum(held.values())))


def as_predicted(run) -> bool:
    """Whether every rank holds what the class should leave it, kind by kind, up to 2 % of it all."""
    pairs = zip(run.facts["bytes_per_rank"], run.facts["bytes_predicted"], strict=True)
    return all(
        abs(held[kind] - predicted[kind]) <= 0.02 * sum(predicted.values())
        for held, predicted in pairs
        for kind in STATE
    )
