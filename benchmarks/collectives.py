"""Each collective against its formula: bytes from the kernel's counters and, where ranks can have a link, seconds at
1 Gb/s.

    formula   what the textbook lets the busiest rank send (dpviz/theory/traffic.py)
    exact     what is really called sends, gloo's headers included, where dpviz knows it to the byte
"""

import time

import torch
import torch.distributed as dist
from report import markdown, number, spread

import dpviz
from dpviz.experiments.all_reduce import COLLECTIVES
from dpviz.parallel import ring
from dpviz.questions import all_reduce as question
from dpviz.records import COUNTED
from dpviz.theory import traffic
from dpviz.theory.time import Line

RANKS, SIZES = (2, 3, 4, 8), (64 << 10, 8 << 20)
GBPS = 1.0
ITEM = 4  # bytes of a float32


def send_to_the_next(tensor):
    incoming = torch.empty_like(tensor)
    ring.exchange(tensor, incoming)
    return incoming


def all_to_all(tensor):
    got = torch.empty_like(tensor)
    dist.all_to_all_single(got, tensor)
    return got


CALLS = {  # (collective, by): a call that works in place or returns what this rank gets
    **{(name, by): call for by, calls in COLLECTIVES.items() for name, call in calls.items()},
    ("broadcast", "gloo"): lambda tensor: dist.broadcast(tensor, 0),
    ("all_to_all", "gloo"): all_to_all,
    ("send to the next", "gloo"): send_to_the_next,
}
DIFFERS = {
    ("reduce_scatter", "gloo"): "an all-reduce inside",
    # its root's m = ceil(log2 k) copies leave together, so each rank after it begins late: (m + 1) / 2 times in all
    ("broadcast", "gloo"): "a tree: the root sends ceil(log2 k) copies at once",
    ("all_reduce", "naive"): "by way of rank 0, and back",
}


def measure(rounds, report, *, ks=RANKS, sizes=SIZES, calls=tuple(CALLS)):
    """Return a row a collective and k:

    collective, by, k, wire      the last says how the bytes were obtained
    payload_bytes                S, a list with one entry a size, as those below
    sent_bytes                   of the busiest rank, in one call
    formula_bytes, exact_bytes   see above; exact None where it is not known
    sent_over_formula
    seconds, formula_seconds, seconds_over_formula     of the largest size on the link; None without one
    """
    linked = dpviz.Link.supported()
    if not linked:
        report.leave_out("collectives, seconds", f"no collective is timed on a link: {linked.reason}")
    rows = []
    for k in ks:
        for collective, by in calls:
            rows.append(_row(collective, by, k=k, sizes=sizes))
        if linked:
            for row in rows[-len(calls) :]:
                _time(row, repeats=max(3, rounds))
        report.progress(f"collectives: {len(calls)} on {k} ranks")
    return rows


def table(rows):
    ks = sorted({row["k"] for row in rows})
    at = {(row["collective"], row["by"], row["k"]): row for row in rows}
    names = list(dict.fromkeys((row["collective"], row["by"]) for row in rows))
    columns = [[f"{what}, k={k}" for k in ks] for what in ("bytes", "time")]
    head = ["collective", "by", *columns[0], "to the byte", *columns[1], "what differs"]
    cells = []
    for collective, by in names:
        some = [at[collective, by, k] for k in ks]
        exact = [row["sent_bytes"] == row["exact_bytes"] for row in some if row["exact_bytes"]]
        cells.append(
            [
                collective,
                by,
                *(number(row["sent_over_formula"][-1], 3) for row in some),
                "-" if not exact else "yes" if all(exact) else "no",
                *(number(row["seconds_over_formula"], 2) for row in some),
                DIFFERS.get((collective, by), ""),
            ]
        )
    largest, smallest = (of(rows[0]["payload_bytes"]) >> 10 for of in (max, min))
    note = (
        f"Measured over formula, {largest} KiB; times at {GBPS:g} Gb/s a rank. To the byte: gloo's headers included, "
        f"{smallest} KiB too."
    )
    return f"{note}\n\n{markdown(head, cells)}"


def experiment(config):
    """Call one collective on every rank: once, alone, so that the launch's bytes are its own, or `repeats` times, each
    from a barrier on, after one that is not timed. Returns whether this rank got what it must, and [start, end] of
    each.
    """
    call, rank, k = CALLS[config["collective"], config["by"]], dist.get_rank(), dist.get_world_size()
    whole = torch.full((config["bytes"] // ITEM,), rank + 1.0)
    mine = whole[: len(whole) // k] if config["collective"] == "all_gather" else whole
    spans = []
    for number_of_call in range(1 + config["repeats"]):
        tensor = mine.clone()
        if config["repeats"]:
            dist.barrier()
        start = time.perf_counter()  # one clock for all ranks of a host
        result = call(tensor)
        if number_of_call:
            spans.append([start, time.perf_counter()])
    got = tensor if result is None else result
    return {"right": torch.equal(got, _expected(config["collective"], len(whole), rank, k)), "spans": spans}


def _expected(collective, elements, rank, k):
    everyone = torch.arange(1.0, k + 1).repeat_interleave(elements // k)
    return {
        "all_reduce": torch.full((elements,), k * (k + 1) / 2),
        "reduce_scatter": torch.full((elements // k,), k * (k + 1) / 2),
        "all_gather": everyone,
        "all_to_all": everyone,
        "broadcast": torch.ones(elements),
        "send to the next": torch.full((elements,), (rank - 1) % k + 1.0),
    }[collective]


def _launch(row, size, *, repeats=0, link=None):
    config = {"collective": row["collective"], "by": row["by"], "bytes": size, "repeats": repeats}
    run = dpviz.launch(experiment, config, world_size=row["k"], link=link)
    if not all(result["right"] for result in run.results):
        raise ValueError(f"{row['collective']} by {row['by']} on {row['k']} ranks brought wrong numbers")
    return run


def _row(collective, by, *, k, sizes):
    payloads = [-(-size // (ITEM * k)) * ITEM * k for size in sizes]  # k equal parts
    row = {"collective": collective, "by": by, "k": k, "payload_bytes": payloads}
    runs = [_launch(row, size) for size in payloads]
    sent = [max(one.sent for one in run.wire) for run in runs]
    formula = [formula_bytes(collective, by, size, k) for size in payloads]
    counted = runs[0].environment.wire == COUNTED
    exact = [exact_bytes(collective, by, size, k) for size in payloads]
    return {
        **row,
        "wire": runs[0].environment.wire,
        "sent_bytes": sent,
        "formula_bytes": formula,
        "exact_bytes": None if counted or None in exact else exact,
        "sent_over_formula": [one / other for one, other in zip(sent, formula, strict=True)],
        **dict.fromkeys(("seconds", "formula_seconds", "seconds_over_formula")),
    }


def _time(row, *, repeats):
    payload = max(row["payload_bytes"])
    run = _launch(row, payload, repeats=repeats, link=dpviz.Link(gbps=GBPS))
    together = zip(*(result["spans"] for result in run.results), strict=True)
    seconds = [max(end for _, end in ranks) - max(start for start, _ in ranks) for ranks in together]
    ways = 2 if row["by"] == "naive" else 1  # there rank 0 receives everything before it sends any
    line = Line(0.0, GBPS * 1e9 / 8)
    row["seconds"] = spread(seconds)
    row["formula_seconds"] = ways * line.seconds(formula_bytes(row["collective"], row["by"], payload, row["k"]))
    row["seconds_over_formula"] = row["seconds"]["median"] / row["formula_seconds"]


def formula_bytes(collective, by, payload, k):
    """Bytes that the busiest rank sends by the textbook."""
    if collective == "broadcast":
        return max(traffic.broadcast_bytes(payload, k))
    if collective == "all_to_all":
        return payload * (k - 1) // k
    if collective == "send to the next":
        return payload
    return question.formula_bytes(_question(collective, by), payload, k)


def exact_bytes(collective, by, payload, k):
    """The same of what is really called, headers included; None where that is not known."""
    if collective == "broadcast":
        copies, headers = traffic.broadcast_bytes(payload, k), traffic.broadcast_framing_bytes(k)
        return max(map(sum, zip(copies, headers, strict=True)))
    if collective == "all_to_all":
        return None
    if collective == "send to the next":
        return payload + 3 * traffic.HEADER
    return sum(question.predicted(_question(collective, by), payload, k))


def _question(collective, by):
    return question.Config(collective=collective, algorithm=by)
