"""Runs and jobs made without ranks, for tests of what is drawn and of the panel's own logic."""

import dataclasses
import threading

import numpy as np

from dpviz.ranks.errors import RankError
from dpviz.records import MEASURED, Environment, Run, Step, Wire

SIZES = {"0.weight": 512, "0.bias": 32, "2.weight": 128, "2.bias": 4}


def environment(world_size: int) -> Environment:
    return Environment(
        world_size=world_size,
        backend="gloo",
        launcher="pool",
        start_method="fork",
        cores=2,
        link="loopback",
        wire=MEASURED,
        torch="2.13.0",
        python="3.11",
        platform="Linux",
    )


def equivalence_run(k=4, big_k=2, *, fault="", dtype="float64", sizes=None, seed=0, spread=1.0, **facts) -> Run:
    """A run of the equivalence experiment with numpy's numbers. fault: "", "sum" or "none"."""
    sizes = sizes or SIZES
    random = np.random.default_rng(seed)
    n = sum(sizes.values())
    true = random.normal(size=n)
    local = true + spread * random.normal(size=(k, n)) * (1 + random.random((k, 1)))
    reference = local.mean(0)
    unit = {"float64": 1e-16, "float32": 6e-8, "bfloat16": 4e-3}[dtype]
    reduced = {"": reference * (1 + unit * random.normal(size=n)), "sum": local.sum(0), "none": None}[fault]
    first = local[0] if reduced is None else reduced
    edges = np.cumsum([0, *sizes.values()])
    errors = {
        name: float(np.abs(first[a:b] - reference[a:b]).max() / np.abs(reference[a:b]).max())
        for name, a, b in zip(sizes, edges, edges[1:], strict=False)
    }
    worst = max(errors.values())
    payload, framing = int(2 * (k - 1) / k * 8 * n), 576 * (k - 1)
    if fault == "none":
        payload = framing = 0
    tolerance = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}[dtype]
    return Run(
        experiment="equivalence",
        config={"accumulation_steps": big_k, "micro_batch": 8, "dtype": dtype},
        results=[
            {
                "local": local[rank],
                "reduced": local[rank] if reduced is None else reduced,
                "names": list(sizes),
                "sizes": list(sizes.values()),
            }
            | ({"reference": reference} if rank == 0 else {})
            for rank in range(k)
        ],
        records=[[Step(step=0, loss=2.3, values={"parameters": [0.1, 0.2]})] for _ in range(k)],
        wire=[Wire(sent=payload + framing, received=payload + framing) for _ in range(k)],
        environment=environment(k),
        facts={
            "max_rel_error": worst,
            "gradients_equal": worst < tolerance,
            "tolerance": tolerance,
            "error_by_tensor": errors,
            "ranks_identical": fault != "none",
            "samples": 8 * k * big_k,
            "gradient_bytes": 8 * n,
            "all_reduces": 0 if fault == "none" else len(sizes),
            "wire_bytes": [payload + framing] * k,
            "wire_bytes_predicted": [payload + framing] * k,
            "framing_bytes_predicted": [framing] * k,
        }
        | facts,
    )


class Job:
    """A launch that ends when the test says so, as `start` would return."""

    def __init__(self, world_size, config, on_record, on_print):
        self.world_size, self.config, self.on_record, self.on_print = world_size, config, on_record, on_print
        self.stopped = False
        self._ended, self._callbacks, self._answer = threading.Event(), [], None

    def end(self, answer) -> None:
        """End with a Run, or with an exception that `result` raises."""
        self._answer = answer
        self._ended.set()
        for function in self._callbacks:
            function(self)

    def done(self) -> bool:
        return self._ended.is_set()

    def result(self):
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    def add_done_callback(self, function) -> None:
        self._callbacks.append(function)
        if self.done():
            function(self)

    def stop(self) -> None:
        self.stopped = True
        self.end(RuntimeError("stopped"))


class Ranks:
    """Stands in for `start`: answers at once, or leaves each Job `open` for the test to end."""

    def __init__(self, *, fault=""):
        self.jobs: list[Job] = []
        self.fault, self.open, self.lines, self.answer = fault, False, [], None
        self.came = threading.Condition()

    def start(self, experiment, config, *, world_size, link, timeout, on_record, on_print) -> Job:
        job = Job(world_size, config, on_record, on_print)
        for line in self.lines:
            on_print(0, line)
        if not self.open:
            job.end(self.answer or self.run(job))
        with self.came:
            self.jobs.append(job)
            self.came.notify_all()
        return job

    def run(self, job) -> Run:
        made = equivalence_run(job.world_size, job.config.accumulation_steps, fault=self.fault, dtype=job.config.dtype)
        return dataclasses.replace(made, config=dataclasses.asdict(job.config))

    def wait_for(self, number: int) -> Job:
        """The `number`-th job, once it has been started."""
        with self.came:
            assert self.came.wait_for(lambda: len(self.jobs) >= number, timeout=5)
        return self.jobs[number - 1]


def rank_error(file: str, line=3) -> RankError:
    """What `result` raises where rank 1 failed in that line."""
    return RankError(
        "rank 1 raised ValueError: <gave up>",
        ranks=[1],
        report="rank 0: waits\nrank 1: raised",
        kind="ValueError",
        message="<gave up>",
        frames=[(file, line, "experiment")],
    )
