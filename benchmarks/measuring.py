"""What measuring costs: a training step of a small DDP model on 4 ranks, with dpviz's instruments off and on, beside
the same steps on ranks that torch spawned.

Within a launch dpviz itself does nothing but what a step asks for: byte counters and torch's flight recorder are read
when it ends. So the instruments are those that an experiment holds: it yields a record, reads bytes, takes
fingerprints, or follows the buckets (`measure.trace`, which attaches hooks and runs torch's profiler).
"""

import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import training
from compare import TRIES
from report import markdown, number, ratio, spread

import dpviz
from dpviz.measure import fingerprint
from dpviz.measure.meter import Meter
from dpviz.measure.trace import BucketTrace

RANKS, STEPS, TIMEOUT_S = 4, 20, 120
BARE, OFF = "torch.multiprocessing.spawn", "dpviz, nothing recorded"
INSTRUMENTS = {  # name: what a step asks for
    OFF: None,
    "a record yielded": "record",
    "bytes and collectives read": "bytes",
    "fingerprints taken": "fingerprints",
    "buckets traced": "trace",
}
LAUNCHES = 3  # a round, of each; a warm one takes less than a spawn by far


def measure(rounds, report, *, steps=STEPS, k=RANKS):
    """Return a row an instrument: what, k, steps, the spread of step_s over ranks and steps, over_bare and over_off
    (the ratios of the medians). The instruments take turns.
    """
    found = {name: [] for name in (BARE, *INSTRUMENTS)}
    for turn in range(rounds):
        found[BARE] += _bare(steps, k=k)
        for _ in range(LAUNCHES):
            for name, instrument in INSTRUMENTS.items():
                found[name] += steps_of(instrument, steps=steps, k=k)
        report.progress(f"measuring: turn {turn + 1}: a bare step {1000 * spread(found[BARE])['median']:.1f} ms")
    times = {name: spread(some) for name, some in found.items()}
    return [
        {
            "what": name,
            "k": k,
            "steps": len(found[name]),
            "step_s": one,
            "over_bare": ratio(one, times[BARE]),
            "over_off": ratio(one, times[OFF]),
        }
        for name, one in times.items()
    ]


def table(rows):
    head = [f"a training step, {rows[0]['k']} ranks", "ms", "over bare torch", "over nothing recorded"]
    cells = []
    for row in rows:
        numbers = 1000 * row["step_s"]["median"], row["over_bare"], row["over_off"]
        cells.append([row["what"], *(number(one, 2) for one in numbers)])
    return markdown(head, cells)


def steps_of(instrument, *, steps, k):
    """Return the seconds of each step of each rank in one warm launch."""
    run = dpviz.launch(experiment, {"instrument": instrument, "steps": steps}, world_size=k)
    return [second for result in run.results for second in result]


def experiment(config):
    """Train as `training.timed` does, with an instrument, whose time is the step's. Yields only where that is asked
    for.
    """
    instrument = config["instrument"]
    (ddp, optimizer), x, seconds = training.model(), training.batch(), []
    trace = BucketTrace(ddp) if instrument == "trace" else None
    meter = Meter() if instrument == "bytes" else None
    for number_of_step in range(training.FIRST + config["steps"]):
        start = time.perf_counter()
        with trace.iteration() if trace else nullcontext():
            training.step(ddp, optimizer, x)
        if meter:
            meter.read()
        if instrument == "fingerprints":
            fingerprint.digest(ddp.parameters())
            fingerprint.sample(ddp.parameters())
        if instrument == "record":
            yield dpviz.Step(step=number_of_step, loss=0.0)
        seconds.append(time.perf_counter() - start)
    if trace:
        trace.close()
    return seconds[training.FIRST :]


def _bare(steps, *, k):
    here = Path(__file__).resolve().parent
    words = [sys.executable, str(here / "training.py"), str(k), str(steps)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    for _ in range(TRIES):
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
        if done.returncode == 0:
            return [second for of_rank in json.loads(done.stdout.splitlines()[-1]) for second in of_rank]
    raise RuntimeError(f"the steps on ranks that torch spawned failed {TRIES} times: {done.stderr[-2000:]}")
