"""Runs of `zero` and `fsdp` made without ranks, with the formulas' own numbers, for tests of what is drawn."""

from made_up import environment

from dpviz.records import Event, Run, Wire
from dpviz.theory import memory, traffic

FRAMING = 1000  # bytes of headers that each rank sent


def zero_run(
    stage=2, k=4, *, N=70_000, K=1, mixed_precision=False, dtype="float32", optimizer="adamw", held=None, **facts
) -> Run:
    """A run whose ranks hold and send what the formula says, FRAMING bytes added. `held`: instead, by kind."""
    each = memory.bytes_a_parameter(mixed_precision=mixed_precision, optimizer=optimizer, dtype=dtype)
    state = memory.model_state(N, k, stage=stage, each=each)._asdict()
    payload = N * each.gradients
    sent = traffic.zero_bytes(payload, k, stage=stage, accumulation_steps=K)
    framing = FRAMING if k > 1 else 0
    times = [0.0, 0.001, 0.004, 0.01, 0.02]
    return Run(
        experiment="zero",
        config={
            "stage": stage,
            "implementation": "by_hand",
            "reduce_scatter": "ring",
            "accumulation_steps": K,
            "mixed_precision": mixed_precision,
            "optimizer": optimizer,
            "dtype": dtype,
        },
        results=[
            {
                "losses": [2.3],
                "memory": {
                    "peak": sum(state.values()) + 5 * N,
                    "times": times,
                    "held": {kind: [count] * len(times) for kind, count in state.items() if count}
                    | {"other": [0, N, 5 * N, 2 * N, 0]},
                },
            }
            for _ in range(k)
        ],
        records=[[] for _ in range(k)],
        wire=[Wire(sent=sent + framing, received=sent + framing) for _ in range(k)],
        environment=environment(k),
        facts={
            "bytes_per_rank": [held or state for _ in range(k)],
            "bytes_predicted": [state for _ in range(k)],
            "formula_bytes": state,
            "parameters": N,
            "payload_bytes": payload,
            "wire_bytes": [sent + framing] * k,
            "wire_bytes_predicted": [sent] * k,
            "framing_bytes_predicted": [framing] * k,
            "wire_over_payload": sent / payload,
            "max_difference_from_stage_0": 1e-7,
            "peak_bytes": [sum(state.values()) + 5 * N] * k,
            "activation_bytes": [3 * N] * k,
        }
        | facts,
    )


def all_stages(**more) -> list[Run]:
    return [zero_run(stage, **more) for stage in memory.STAGES]


def fsdp_run(k=2, *, layers=3, prefetch=0, wrap="each_layer", reshard=True, unit=100, K=1, dtype="float32", **facts):
    """A run in which each layer of `unit` parameters is fetched in 10 ms, used in 2 and reduced in 5, one by one; with
    prefetch the next one's fetching begins when this one is whole.
    """
    names = [f"layers.{number}" for number in range(layers)] if wrap == "each_layer" else ["the rest"]
    events, whole, now, free = [], [], 0.0, 0.0
    order = [(what, n) for what, places in (("forward", names), ("backward", names[::-1])) for n in places]
    for what, name in order:
        began = free if prefetch else now
        if what == "forward" or reshard:
            events.append(Event(name=f"gather {name}", start_s=began, end_s=began + 0.01, lane="gather"))
        come = free = max(now, began + 0.01)
        events.append(Event(name=f"{what} {name}", start_s=come, end_s=come + 0.002, lane="compute"))
        whole.append({"unit": names.index(name), "from_s": come, "to_s": come + 0.002})
        now = come + 0.002
        if what == "backward":
            events.append(Event(name=f"scatter {name}", start_s=now, end_s=now + 0.005, lane="scatter"))
            now += 0.005
    size = unit if wrap == "each_layer" else layers * unit
    held = {
        "parameters": [200, 200, 200],
        "gathered": [0, 4 * size, 0],
        "activations": [0, 700, 0],
        "other": [0, 7700, 0],
    }
    return Run(
        experiment="fsdp",
        config={
            "implementation": "by_hand",
            "wrap": wrap,
            "reshard_after_forward": reshard,
            "prefetch": prefetch,
            "accumulation_steps": K,
            "sync": "every",
            "mixed_precision": False,
            "dtype": dtype,
        },
        results=[
            {
                "timeline": [vars(event) for event in events],
                "whole": whole,
                "group_names": names,
                "group_sizes": [size] * len(names),
                "wire_item_bytes": 4,
                "memory": {"peak": 9000, "times": [0.0, 0.01, 0.02], "held": held},
            }
            for _ in range(k)
        ],
        records=[[] for _ in range(k)],
        wire=[Wire(sent=0, received=0) for _ in range(k)],
        environment=environment(k),
        facts={
            "bytes_per_rank": [{"parameters": 200, "gradients": 200, "optimizer": 400}] * k,
            "parameters": layers * unit,
            "max_difference_from_ddp": 1e-7,
            "hidden_fraction": 0.4 if prefetch else 0.0,
            "waiting_s": 0.06 * (0.6 if prefetch else 1.001),
            "gather_s": 0.06,
            "seconds": {"median": 0.1, "min": 0.09, "max": 0.12},
        }
        | facts,
    )
