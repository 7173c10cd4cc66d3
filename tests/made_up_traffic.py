"""Runs of `all_reduce` and `buckets` made without ranks, for tests of what is drawn."""

from dataclasses import replace

from made_up import environment

from dpviz.records import Event, Run, Wire

KiB, MiB = 1 << 10, 1 << 20
SIZES = (4 * KiB, 64 * KiB, MiB, 8 * MiB)
ALPHA_S = 3e-4


def linked(k: int, gbps: float | None = 1.0):
    """The environment of k ranks on a link of that rate, or on plain loopback."""
    return replace(environment(k), link=f"link {gbps:g} Gb/s" if gbps else "loopback", link_gbps=gbps)


def ring_transfers(k: int, *, chunk_bytes=64, phases=("reduce_scatter", "all_gather")) -> list[list[dict]]:
    """[rank] -> what each rank of a ring sends, in order."""
    sent = [[] for _ in range(k)]
    step = 0
    for phase in phases:
        for turn in range(k - 1):
            for rank in range(k):
                gathers = phase == "all_gather"
                sent[rank].append(
                    {
                        "step": step,
                        "phase": phase,
                        "to": (rank + 1) % k,
                        "chunk": (rank - turn - (not gathers)) % k,
                        "bytes": chunk_bytes,
                        "contributions": (1 if len(phases) == 1 else k) if gathers else 1 + turn,
                        "start_s": 1e-3 * step,
                        "end_s": 1e-3 * step + 4e-4,
                    }
                )
            step += 1
    return sent


def all_reduce_run(
    k=4, *, algorithm="ring", collective="all_reduce", gbps=1.0, sizes=SIZES, alpha=ALPHA_S, transfers=True, **facts
) -> Run:
    """A run of all_reduce: bytes as by the formula, and seconds = alpha + bytes at the link's rate (or at 5 Gb/s)."""
    halves = 2 if collective == "all_reduce" else 1
    formula = k - 1 if algorithm == "naive" else halves * (k - 1) / k
    factor = 2 * (k - 1) / k if (algorithm, collective) == ("gloo", "reduce_scatter") else formula
    rate = (gbps or 5.0) * 1e9 / 8
    times = [alpha + factor * size / rate for size in sizes]
    phases = ("reduce_scatter", "all_gather") if halves == 2 else (collective,)
    told = ring_transfers(k, phases=phases) if algorithm == "ring" and transfers else [None] * k
    largest = max(sizes)
    results = []
    for rank in range(k):
        sent_to = [0] * k
        if algorithm == "naive":
            for other in range(1, k) if rank == 0 else [0]:
                sent_to[other] = largest
        elif k > 1:
            sent_to[(rank + 1) % k] = int(factor * largest) + 576
        more = {} if told[rank] is None else {"transfers": told[rank], "ring_payload_bytes": 64 * k}
        results.append({"sent_to": sent_to, **more})
    each = [sum(result["sent_to"]) / largest for result in results]
    return Run(
        experiment="all_reduce",
        config={
            "sizes": list(sizes),
            "algorithm": algorithm,
            "collective": collective,
            "repeats": 5,
            "dtype": "float32",
        },
        results=results,
        records=[[] for _ in range(k)],
        wire=[Wire(sent=100, received=100)] * k,
        environment=linked(k, gbps),
        facts={
            "payload_bytes": list(sizes),
            "bytes_over_payload": [max(each)] * len(sizes),
            "bytes_over_payload_by_rank": [each] * len(sizes),
            "formula_bytes_over_payload": [formula] * len(sizes),
            "bytes_over_payload_predicted": [factor] * len(sizes),
            "framing_bytes_predicted": [None] * len(sizes),
            "seconds": [{"median": t, "min": 0.95 * t, "max": 1.2 * t} for t in times],
            "formula_seconds": [formula * size / rate if gbps else None for size in sizes],
            "equal": [True] * len(sizes),
            "call_s": alpha if k > 1 else None,
            "latency_s": alpha / (halves * (k - 1)) if k > 1 else None,
            "latency_range_s": [0.9 * alpha, 1.2 * alpha] if k > 1 else None,
            "bandwidth_bytes_per_s": rate if k > 1 else None,
            "bandwidth_range_bytes_per_s": [0.9 * rate, rate] if k > 1 else None,
        }
        | facts,
    )


def buckets_run(
    k=2, *, cap=2.0, count=8, gbps=1.0, backward_s=0.15, compute_s=0.05, late=None, results=None, config=None, **facts
) -> Run:
    """A run of buckets: `count` of them, ready while backward computes, sent one after another.

    late: a rank whose data take 100 ms more than the others'
    """
    each = (backward_s - compute_s / max(count, 1)) / max(count, 1)
    made = []
    for rank in range(k):
        begin = 0.0 if late in (rank, None) else -0.1  # seconds since the last rank began its backward
        data = 0.1 if rank == late else 0.0
        ready = [begin + compute_s * (i + 1) / count for i in range(count)]
        starts = [compute_s / count + each * i for i in range(count)]
        work = {
            "data": (begin - 0.03 - data, begin - 0.03),
            "forward": (begin - 0.03, begin),
            "backward": (begin, backward_s),
        }
        made.append(
            {
                "timeline": [Event(name=n, start_s=a, end_s=b, lane=n) for n, (a, b) in work.items()],
                "buckets": [
                    {
                        "index": i,
                        "bytes": 2 * MiB,
                        "ready_s": ready[i],
                        "handed_s": ready[i],
                        "start_s": max(starts[i], ready[i]),
                        "end_s": max(starts[i], ready[i]) + each,
                        "done_s": max(starts[i], ready[i]) + each,
                    }
                    for i in range(count)
                ],
            }
        )
    hidden = 1 - (backward_s - compute_s) / (count * each) if count else None
    lateness = [0.1 if rank == late else 0.0 for rank in range(k)]
    setting = {"bucket_cap_mb": cap, "small_tensors": 0, "implementation": "torch", "no_sync": not count}
    return Run(
        experiment="buckets",
        config=setting | {"slow_rank": -1 if late is None else late} | (config or {}),
        results=results or made,
        records=[[] for _ in range(k)],
        wire=[Wire(sent=100, received=100)] * k,
        environment=linked(k, gbps),
        facts={
            "bucket_bytes": [2 * MiB] * count,
            "gradients_equal": True,
            "backward_s": backward_s,
            "backward_range_s": [0.95 * backward_s, 1.1 * backward_s],
            "compute_s": compute_s,
            "compute_range_s": [0.9 * compute_s, 1.2 * compute_s],
            "exposed_s": backward_s - compute_s,
            "communication_s": count * each,
            "overlap_fraction": hidden,
            "waits_for": late,
            "lateness_s": lateness,
        }
        | facts,
    )
