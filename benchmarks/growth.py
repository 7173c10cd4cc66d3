"""How cost grows: a warm launch, and one update inside it, as the number of ranks k, the model's parameters and the
micro-batches K grow, one of the three at a time.
"""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from report import markdown, number, spread
from torch import nn

import dpviz
from dpviz.measure.meter import Meter
from dpviz.theory import traffic

USUAL = {"k": 4, "parameters": 100_000, "K": 1}
GROWN = {
    "k": (2, 4, 8, 16, 32),
    "parameters": (10_000, 100_000, 1_000_000, 10_000_000),
    "K": (1, 2, 4, 8, 16, 32),
}
SAMPLES, UPDATES, LAUNCHES = 8, 4, 3  # in a micro-batch; in a launch, the first not timed; warm, a round


def measure(rounds, report, *, grown=GROWN):
    """Return a row a point: grows (which of the three), k, parameters, K, the spread of launch_s (warm, one launch of
    UPDATES updates), of update_s (over ranks), and sent_over_formula, the bytes that a rank sends in one update over
    2 (k-1)/k of the gradient.
    """
    rows = []
    for what, values in grown.items():
        for value in values:
            rows.append({"grows": what, **USUAL, what: value, "launch_s": [], "update_s": []})
    for turn in range(rounds):
        for row in rows:
            launched(row)  # other ranks meet in another group first
            for _ in range(LAUNCHES):
                start = time.perf_counter()
                run = launched(row)
                row["launch_s"].append(time.perf_counter() - start)
                row["update_s"] += [second for result in run.results for second in result["update_s"]]
            row["sent_over_formula"] = _over_formula(run)
            row["parameters"] = run.results[0]["parameters"]
        report.progress(f"growth: turn {turn + 1}: {len(rows)} points")
    return [{**row, "launch_s": spread(row["launch_s"]), "update_s": spread(row["update_s"])} for row in rows]


def table(rows):
    head = ["grows", "k", "parameters", "K", "warm launch (ms)", "one update (ms)", "bytes over 2 (k-1)/k S"]
    cells = [
        [
            row["grows"],
            str(row["k"]),
            f"{row['parameters']:,}",
            str(row["K"]),
            number(1000 * row["launch_s"]["median"], 0),
            number(1000 * row["update_s"]["median"], 1),
            number(row["sent_over_formula"], 3),
        ]
        for row in rows
    ]
    return markdown(head, cells)


def launched(point):
    config = {name: point[name] for name in ("parameters", "K")}
    return dpviz.launch(experiment, config, world_size=point["k"])


def experiment(config):
    """Train a perceptron of about so many parameters with DDP, K micro-batches an update. Returns the seconds of each
    update but the first, the bytes sent in the last one, and how many parameters there are.
    """
    width = round((config["parameters"] / 2) ** 0.5)
    ddp = nn.parallel.DistributedDataParallel(
        nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh(), nn.Linear(width, width, bias=False))
    )
    optimizer, x = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.randn(SAMPLES, width)
    seconds, meter = [], Meter()
    for _ in range(UPDATES):
        dist.barrier()
        meter.read()
        start = time.perf_counter()
        optimizer.zero_grad()
        for number_of_batch in range(1, config["K"] + 1):
            with ddp.no_sync() if number_of_batch < config["K"] else nullcontext():
                (ddp(x).square().mean() / config["K"]).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        sent, _ = meter.read()
    return {"update_s": seconds[1:], "sent_bytes": sent, "parameters": sum(p.numel() for p in ddp.parameters())}


def _over_formula(run):
    payload, k = 4 * run.results[0]["parameters"], run.environment.world_size
    return max(result["sent_bytes"] for result in run.results) / traffic.ring_all_reduce_bytes(payload, k)
