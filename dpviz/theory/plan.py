"""Which ZeRO stage? Memory, traffic and time of each, what fits, and which to take. All of it is modelled.

The rule is the courses': plain data parallelism or ZeRO-1 or 2 where it fits, ZeRO-3 (FSDP) where nothing else does.
Terms: N parameters in mixed precision with AdamW (16 bytes each), P = 2 N bytes of bfloat16 gradients, k ranks,
K accumulation steps. GB is 10^9 bytes; traffic is what one rank sends in one optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpviz.theory import memory, time, traffic

GB = memory.GB
NAMES = ("DP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
COMFORTABLE = 0.05  # of the card that should stay free: fragments and communication buffers take about as much
OFFLOAD_BYTES_PER_S = 25e9  # what PCIe 4.0 x16 carries in practice, in each direction


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage on one rank. Times in seconds: `step_s` if all of the communication hides behind the computing, and
    `step_exposed_s` if none of it does.
    """

    stage: int
    name: str
    model_state_gb: float
    memory_gb: float
    free_gb: float
    fits: bool
    traffic_gb: float
    communication_s: float
    compute_s: float
    step_s: float
    step_exposed_s: float


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The four stages, the stage to choose (None where none fits), and why; notes on what else was asked for."""

    stages: list[Stage]
    choice: int | None
    why: str
    notes: list[str]
    global_batch_tokens: int
    wasted_gb: float
    smallest_world_size: int | None


def plan(
    *,
    parameters: float,
    world_size: int,
    memory_gb: float,
    activations_gb: float = 0.0,
    headroom_gb: float = 0.0,
    accumulation_steps: int = 1,
    tokens: int = 8192,
    link_gbps: float = 400.0,
    flops_per_s: float = 1e14,
    largest_batch_tokens: float | None = None,
) -> Plan:
    """Return the Plan for N = `parameters` on k = `world_size` ranks of `memory_gb` each.

    activations_gb        of one micro-batch, which no stage divides; headroom_gb, kept free on top
    tokens                of one rank's micro-batch
    link_gbps             10^9 bits a second of each rank's link; flops_per_s, what a rank really computes a second
    largest_batch_tokens  the largest global batch at which the loss still falls as it should, None where unknown

    7e9 parameters, 8 ranks: 112, 38.5, 26.25, 14 GB and 24.5, 24.5, 24.5, 36.75 GB of traffic a step.
    """
    K, payload = accumulation_steps, int(2 * parameters)
    compute = time.compute_seconds(parameters, tokens * K, flops_per_s=flops_per_s)
    stages = []
    for stage in memory.STAGES:
        state = memory.model_state(parameters, world_size, stage=stage).total / GB
        used = state + activations_gb + headroom_gb
        sent = traffic.zero_bytes(payload, world_size, stage=stage, accumulation_steps=K)
        communication = sent / (link_gbps * 1e9 / 8)
        stages.append(
            Stage(
                stage=stage,
                name=NAMES[stage],
                model_state_gb=state,
                memory_gb=used,
                free_gb=memory_gb - used,
                fits=used <= memory_gb,
                traffic_gb=sent / GB,
                communication_s=communication,
                compute_s=compute,
                step_s=max(compute, communication),
                step_exposed_s=compute + communication,
            )
        )
    room = (memory_gb - activations_gb - headroom_gb) * GB
    least = memory.smallest_world_size(parameters, room) if room >= 1 else None
    choice, why = _choice(stages, memory_gb=memory_gb)
    if choice is None:
        why = _none_fits(stages[3], memory_gb=memory_gb, parameters=parameters, k=world_size, least=least)
    batch = world_size * K * tokens
    return Plan(
        stages=stages,
        choice=choice,
        why=why,
        notes=_notes(stages, choice, world_size=world_size, K=K, batch=batch, largest=largest_batch_tokens),
        global_batch_tokens=batch,
        wasted_gb=memory.wasted(parameters, world_size) / GB,
        smallest_world_size=least,
    )


def _choice(stages: list[Stage], *, memory_gb: float) -> tuple[int | None, str]:
    """The lowest stage that leaves some room, else the one that fits with the most."""
    fitting = [stage for stage in stages if stage.fits]
    if not fitting:
        return None, ""
    roomy = [stage for stage in fitting if stage.free_gb >= COMFORTABLE * memory_gb]
    chosen = roomy[0] if roomy else fitting[-1]
    why = f"{chosen.name} takes {_of(chosen.memory_gb)} of {memory_gb:g} GB"
    tight = [stage for stage in fitting if stage.stage < chosen.stage]
    too_large = [stage for stage in stages if not stage.fits]
    if too_large:
        largest = too_large[-1]
        why += f"; {largest.name} would take {_of(largest.memory_gb)} GB and does not fit"
    if tight:
        why += f"; {tight[0].name} would leave {tight[0].free_gb:.2g} GB free, less than fragments and buffers take"
    sent, plain = _of(chosen.traffic_gb), _of(stages[0].traffic_gb)
    if chosen.stage == 0:
        why += "; nothing needs to be divided, so nothing more needs to be sent or gathered"
    elif chosen.stage < 3:
        why += f"; it sends {sent} GB a step, plain data parallelism {plain} GB"
    else:
        why += f"; it sends {sent} GB a step instead of {plain} GB, which is the price"
    if not roomy:
        why += f"; only {chosen.free_gb:.2g} GB stay free, so expect to run out of memory now and then"
    return chosen.stage, why + "."


def _none_fits(zero_3: Stage, *, memory_gb: float, parameters: float, k: int, least: int | None) -> str:
    why = f"Nothing fits: even ZeRO-3 would take {_of(zero_3.memory_gb)} of {memory_gb:g} GB. "
    if least is None:
        return why + "The activations and the headroom alone fill the card: lower the micro-batch, or recompute them."
    offloaded = 12 * parameters / k  # of its 16 N/k bytes
    seconds = 4 * parameters / k / OFFLOAD_BYTES_PER_S
    enough = "which is enough" if zero_3.memory_gb - offloaded / GB <= memory_gb else "which is not enough"
    return (
        f"{why}It would fit on {least} ranks. Or lower the activations (smaller micro-batches, recomputation); or "
        f"offload the optimizer to the host, which frees {offloaded / GB:.4g} GB, {enough}, and at "
        f"{OFFLOAD_BYTES_PER_S / 1e9:g} GB/s costs {_of(seconds)} s a step for gradients down and parameters up; "
        "or divide the model itself (tensor or pipeline parallelism)."
    )


def _notes(
    stages: list[Stage], choice: int | None, *, world_size: int, K: int, batch: int, largest: float | None
) -> list[str]:
    notes = []
    if largest is not None and batch > largest:
        notes.append(
            f"The global batch is {batch:,} tokens ({world_size} ranks x {K} micro-batches), beyond the {largest:,.0f} "
            "that still pay: lower K or the micro-batch, or give some ranks to another axis than data."
        )
    chosen = stages[choice] if choice is not None else None
    if chosen and chosen.communication_s > chosen.compute_s:
        notes.append(
            f"The link is the bottleneck: {_of(chosen.communication_s)} s of communication, {_of(chosen.compute_s)} s "
            "of computing. More tokens a rank and step, or a faster link, would help; more ranks would not."
        )
    if chosen and chosen.stage in (2, 3) and K > 1:
        notes.append(
            f"Stage {chosen.stage} reduces gradients at every micro-batch to keep them divided: K = {K} multiplies its "
            "traffic. Reducing once, at the end, costs the memory of whole gradients."
        )
    return notes


def _of(number: float) -> str:
    """Four digits, and no powers of ten."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
