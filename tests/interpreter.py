"""An interpreter of its own that launches what it is told to, also faults, and says what it then has.

with Interpreter(folder) as python:
    python.do("launch", fault="kill_9")  # {"error": ..., "results": ..., "seconds": ...}
    python.end()
    python.left_after(5)  # sentences
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import random
import runpy
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from nothing_left import MARK, Watched, caller, grown

from dpviz.ranks import jobs, sources, travel
from dpviz.ranks import launch as launching
from dpviz.ranks.launch import launch, start
from dpviz.ranks.link import Link
from dpviz.ranks.ongoing import Ongoing
from dpviz.ranks.pool import RankPool

HERE = str(Path(__file__).parent)


def environment(folder: Path, mark: str) -> dict[str, str]:
    """That of an interpreter whose processes and files we want to find again."""
    path = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
    kept = {name: value for name, value in os.environ.items() if name != "TORCHINDUCTOR_CACHE_DIR"}  # torch sets it
    return {**kept, MARK: mark, "TMPDIR": str(folder), "PYTHONPATH": path}


class Interpreter(Watched):
    def __init__(self, folder: Path):
        super().__init__(secrets.token_hex(8), str(folder))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "import interpreter; interpreter.serve()"],
            env=environment(folder, self.mark),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def do(self, name: str, **arguments):
        """Have its Actor do something; return the answer."""
        self.process.stdin.write(json.dumps([name, arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the interpreter has ended"
        return json.loads(line)

    def end(self) -> int:
        """Let it end as a script does that is through."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        status = self.process.wait(20)
        self.process.stdout.close()
        return status

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def __enter__(self) -> Interpreter:
        return self

    def __exit__(self, *_) -> None:
        self.kill()


# -- in the interpreter


def serve() -> None:
    """Do what comes by standard input; the answers leave by what was standard output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    actor = Actor()
    for line in sys.stdin:
        name, arguments = json.loads(line)
        answers.write(json.dumps(getattr(actor, name)(**arguments)) + "\n")


class Actor:
    """Imports torch with the faults: later than its first launch, which then does not wait for it."""

    def __init__(self):
        self.k = 4
        self.first: dict = {}

    def settle(self) -> list[dict]:
        """Three launches, of which the second fails; from here on `grown` compares with what there is now."""
        Link.supported()  # else the first launch on a link would wait for it
        answers = [self.launch(), self.launch("a_rank_raises")]
        self._tried(dawdle)  # a rank's first record costs it a descriptor, once
        answers.append(self.launch())
        self.first = caller()
        return answers

    def grown(self) -> list[str]:
        """What there is more of than at first, still after a second: the dying may take a moment."""
        deadline = time.monotonic() + 1
        while (found := grown(self.first, caller())) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def launch(self, fault: str = "", *, link: bool = False) -> dict:
        """Launch the fault of that name, or what is right."""
        import faults

        known = next((one for one in faults.FAULTS if one.name == fault), None)
        experiment = faults.right if known is None else known.experiment() if known.made else known.experiment
        timeout = faults.LATE_S if known and known.waits else 30
        return self._tried(experiment, timeout=timeout, link=Link(gbps=5.0) if link else None)

    def interrupted(self, stage: str) -> dict:
        """Launch, and be interrupted at that stage of it."""
        owner, name, after = STAGES[stage]
        if stage in COLD:
            jobs._owner.submit(RankPool.kill)
        with contextlib.ExitStack() as hooks:
            came = hooks.enter_context(_interrupt(owner, name, after=after))
            if stage == "twice":
                hooks.enter_context(_interrupt(jobs.Job, "stop_here"))
            answer = self._tried(dawdle if stage in LATE else never_end, timeout=30)
        return answer | {"came": bool(came)}

    def be_in_the_middle(self) -> int:
        """Answer when every rank is in a launch that has no end; return how many there are."""
        came = threading.Semaphore(0)
        start(never_end_beside_a_child, world_size=self.k, timeout=300, on_record=lambda *_: came.release())
        return sum(came.acquire(timeout=20) for _ in range(self.k))

    def lose_an_idle_rank(self) -> bool:
        """Kill a rank between two launches; return whether it and the child that it had started have ended.

        Only then are its sockets closed on both sides: a process that is ending holds them a little longer.
        """
        children: dict[int, int] = {}
        launch(leave_a_child, world_size=self.k, on_record=children.__setitem__)
        rank = jobs._owner.pool.pids()[1]
        os.kill(rank, signal.SIGKILL)
        deadline = time.monotonic() + 2
        while not (ended := _has_ended(rank) and _has_ended(children[1])) and time.monotonic() < deadline:
            time.sleep(0.02)
        return ended

    def how_soon_the_system_ends_them(self) -> dict:
        """The kernel's scores when memory runs out, of ranks, their server and this process: the highest goes first."""
        pool = jobs._owner.pool
        who = {"ranks": pool.pids(), "server": pool.source.process.pid, "caller": os.getpid()}

        def score(pid: int) -> int:
            return int(Path(f"/proc/{pid}/oom_score").read_text())

        return {name: [score(pid) for pid in of] if name == "ranks" else score(of) for name, of in who.items()}

    def sliders(self, *, seed: int, moves: int) -> dict:
        """Move every control of a panel at random; return what it says in the end, and what a fresh one would."""
        import dpviz
        from dpviz.figures import equivalence as figure
        from dpviz.questions.equivalence import Config

        def made(config, k):
            controls = {"world_size": (1, 8), "accumulation_steps": (1, 16), "average": None, "reduction": None}
            return dpviz.panel("dpviz.experiments.equivalence:experiment", config, figure=figure, world_size=k,
                               controls=controls)  # fmt: skip

        draw, panel = random.Random(seed), made(Config(), 4)
        for _ in range(moves):
            name = draw.choice(list(panel.controls))
            control = panel.controls[name]
            if options := getattr(control, "options", None):
                control.value = draw.choice([one[1] if isinstance(one, tuple) else one for one in options])
            elif isinstance(control.value, bool):
                control.value = not control.value
            else:
                control.value = draw.randint(control.min, control.max)
            if draw.random() < 0.1:
                panel.stop()
            time.sleep(draw.choice([0, 0, 0.02, 0.2]))
        for name in ("accumulation_steps", "world_size"):  # at once, and not stopped
            panel.controls[name].value = 3 if panel.controls[name].value != 3 else 5
        panel._newest.wait()
        values = {name: control.value for name, control in panel.controls.items()}
        k = values.pop("world_size")
        fresh = made(Config(**values), k)
        return {"values": values | {"world_size": k}, "panel": _seen(panel), "fresh": _seen(fresh)}

    def soak(self, *, seed: int, launches: int) -> dict:
        """Launch at random, a tenth of it faults; return what was wrong, how often was what, and the memory at a tenth
        of the way and in the end.
        """
        import faults

        draw, wrong, memory = random.Random(seed), [], []
        count: dict[str, int] = {"right": 0, "on a link": 0, "fault": 0}
        quick, slow = ([fault for fault in faults.FAULTS if bool(fault.waits) == waits] for waits in (False, True))
        linked = bool(Link.supported())
        for number in range(launches):
            link = linked and draw.random() < 0.5
            if draw.random() < 0.1:
                fault = draw.choice(slow if draw.random() < 0.2 else quick)
                self.k = draw.randint(4, 8)
                answer = self.launch(fault.name, link=link)
                ranks = list(range(self.k)) if fault.ranks == faults.ALL else list(fault.ranks)
                right = fault.said in answer["error"] and answer["ranks"] == ranks
                right &= answer["results"] == (None if fault.said else [faults.total(self.k)] * self.k)
                count["fault"] += 1
            else:
                self.k = draw.randint(1, 8)
                answer = self.launch(link=link)
                right = answer["results"] == [faults.total(self.k)] * self.k
                count["right"] += 1
            count["on a link"] += link
            if not right:
                wrong.append(f"launch {number} of k={self.k}: {answer}")
            if number + 1 in (launches // 10, launches):
                memory.append(self._memory())
        self.k = 4
        return {"wrong": wrong, "count": count, "memory_mb": memory}

    def _memory(self) -> dict[str, float]:
        """MB that this process, the server and the largest of eight new ranks have for themselves."""
        self.k = 8
        self.launch("a_rank_raises")
        for _ in range(5):
            self.launch()
        gc.collect()
        pool = jobs._owner.pool

        def own(pid: int) -> float:
            return psutil.Process(pid).memory_full_info().uss / 1e6

        ranks = max(own(pid) for pid in pool.pids())
        return {"caller": own(os.getpid()), "server": own(pool.source.process.pid), "rank": ranks}

    def _tried(self, experiment, **options) -> dict:
        began = time.monotonic()
        answer = {"results": None, "error": "", "kind": "", "ranks": []}
        try:
            answer["results"] = launch(experiment, world_size=self.k, on_print=lambda *_: None, **options).results
        except BaseException as error:
            said = f"{error}\n{getattr(error, 'report', '')}"
            answer |= {"kind": type(error).__name__, "error": said, "ranks": getattr(error, "ranks", [])}
        return answer | {"seconds": time.monotonic() - began}


def _seen(panel) -> list:
    """What a learner sees of a panel: the verdict, whether it is through, and the picture."""
    return [panel._verdict.value, "✓" in panel._status.value, json.loads(panel.figure.to_json())["data"]]


def _has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def never_end(config):
    yield "here"
    time.sleep(600)


def leave_a_child(config):
    if (child := os.fork()) == 0:
        time.sleep(600)
        os._exit(0)
    yield child


def never_end_beside_a_child(config):
    yield from leave_a_child(config)
    time.sleep(600)


def dawdle(config):
    yield "here"
    time.sleep(0.05)
    return "there"


# -- Ctrl-C at every stage

STAGES = {  # what the interrupt comes before, or after
    "the rank server starts": (sources.RankServer, "__init__", True),
    "the function is packed": (travel, "pack", False),
    "it is handed to the pool's thread": (jobs, "submit", True),
    "ranks are forked": (RankPool, "_begin", True),
    "ranks meet": (RankPool, "_join", False),
    "the ranks are called": (RankPool, "_collect", False),
    "a record comes": (Ongoing, "_record", False),
    "twice": (Ongoing, "_record", False),
    "a result comes": (Ongoing, "_result", False),
    "bytes are read": (RankPool, "_finish", False),
    "the Run is made": (launching, "_made", False),
    "the Run is returned": (jobs.Job, "result", False),
}
COLD = ("ranks are forked", "ranks meet")
COMMAND_STAGES = ("modules are imported", "the rank server starts", "it ends")
LATE = ("a result comes", "bytes are read", "the Run is made", "the Run is returned")


@contextlib.contextmanager
def _interrupt(owner, name: str, *, after: bool = False) -> Iterator[list]:
    """Interrupt the main thread the next time that this function begins, or ends, on whatever thread."""
    real, came = getattr(owner, name), []

    def interrupt() -> None:
        if not came:
            came.append(name)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.05)  # the main thread hears of it while this one is here

    def instead(*arguments, **options):
        if not after:
            interrupt()
        result = real(*arguments, **options)
        if after:
            interrupt()
        return result

    setattr(owner, name, instead)
    try:
        yield came
    finally:
        setattr(owner, name, real)


class _Importing:
    """A finder of modules that finds none, and interrupts where the pool would be imported."""

    def find_spec(self, name, path, target=None):
        if name == "dpviz.ranks.pool":
            signal.raise_signal(signal.SIGINT)


def command(stage: str, *arguments: str) -> None:
    """Be `python -m dpviz` with these arguments, interrupted at a stage of it."""
    sys.argv = ["dpviz", *arguments]
    with contextlib.ExitStack() as hooks:
        if stage == "modules are imported":
            for name in [name for name in sys.modules if name.startswith("dpviz")]:
                del sys.modules[name]
            sys.meta_path.insert(0, _Importing())
        elif stage == "it ends":
            atexit.register(signal.raise_signal, signal.SIGINT)
        else:
            hooks.enter_context(_interrupt(*STAGES[stage][:2], after=STAGES[stage][2]))
        runpy.run_module("dpviz", run_name="__main__")
