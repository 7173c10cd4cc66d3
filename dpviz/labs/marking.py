"""Run a notebook under pytest and nbval, in processes of its own, within limits of time, memory and output.

Nothing of it outlives the run: the kernel, the rank server and the ranks are killed with it, and what they wrote lies
in a folder that is removed. It is no jail: work that you do not trust belongs in a container.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import psutil

MOST_BYTES = 4 << 30  # of memory, for any one process
LOOK_S = 0.1
INTERRUPT_S = 5.0  # how long nbval may take to interrupt a cell: one that catches the interrupt goes on for ever
ENDING_S = 2.0  # how long pytest may go on without a kernel before it is taken to wait for one that has died
LATE = re.compile(r"Timeout of|KeyboardInterrupt")  # how the error begins of a cell that nbval has interrupted
CELL_SHARE = 4  # no cell may take more than this part of the time


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How one cell went; `why` it did not pass."""

    passed: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Marked:
    """{cell id: Outcome} of the cells that ended, the id of the one that was `stopped`, "" where none was, and why."""

    outcomes: dict[str, Outcome]
    stopped: str = ""
    why: str = ""


def run(notebook, *, limit_s: float, cell_s: float | None = None) -> Marked:
    """Run every cell of `notebook` and return how they went. A cell that takes longer than `cell_s` (None: a quarter of
    `limit_s`), or fills the memory, is stopped, and with it the run.
    """
    cell_s = limit_s / CELL_SHARE if cell_s is None else cell_s
    with tempfile.TemporaryDirectory(prefix="dpviz-lab-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        nbformat.write(notebook, place / "lab.ipynb")
        (place / "pytest.ini").write_text("[pytest]\n")
        told = place / "report.jsonl"
        told.touch()
        process = subprocess.Popen(
            _command(cell_s),
            cwd=place,
            env=_environment(place, told),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            why = _watch(process, limit_s, cell_s, told)
        finally:
            _end(process, told)
        return _marked(told.read_text(encoding="utf-8"), why)


def _command(cell_s: float) -> list[str]:
    options = ["-p", "no:cacheprovider", "-p", "dpviz.labs.report", "-c", "pytest.ini", "--rootdir", "."]
    nbval = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={max(1, round(cell_s))}"]
    return [sys.executable, "-m", "pytest", "-q", "--tb=no", *options, *nbval, "lab.ipynb"]


def _environment(place: Path, told: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    own = {"TMPDIR": str(place), "JUPYTER_RUNTIME_DIR": str(place / "runtime"), "IPYTHONDIR": str(place / "ipython")}
    return {**os.environ, **own, "PYTHONPATH": paths, "DPVIZ_LAB_REPORT": str(told)}


def _watch(process: subprocess.Popen, limit_s: float, cell_s: float, told: Path) -> str:
    """Wait for its end; return why it must be stopped before, "" where it ended by itself."""
    until = time.monotonic() + limit_s
    kernel_seen, gone_since, size, since = False, None, 0, 0.0
    while process.poll() is None:
        _, *family = _family(process.pid) or [None]
        now, kernel = time.monotonic(), any(_lives(one) for one in family)
        kernel_seen |= kernel
        gone_since = None if kernel or not kernel_seen else gone_since or now
        if now > until:
            return f"stopped after {limit_s:.0f} s"
        if told.stat().st_size != size:
            size, since = told.stat().st_size, now
        if size and now - since > cell_s + INTERRUPT_S:
            return "took too long"
        if any(_resident(one) > MOST_BYTES for one in family):
            return f"stopped: it used more than {MOST_BYTES / 2**30:.2g} GiB of memory"
        if gone_since and now - gone_since > ENDING_S:  # nbval would wait until its time is over
            return "its kernel ended"
        time.sleep(LOOK_S)
    return ""


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # pytest does not wait for a kernel that died
    except psutil.NoSuchProcess:
        return False


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0


def _end(process: subprocess.Popen, told: Path) -> None:
    """Kill it and all that it has started, also what has lost its parent since, and wait for their end."""
    for _ in range(5):  # what is killed may have started another just before
        family = [*_family(process.pid), *(one for one in psutil.process_iter() if _began_in(one, told))]
        if not family:
            break
        for one in family:
            try:
                one.kill()
            except psutil.Error:
                continue
        psutil.wait_procs(family, timeout=5)
        process.poll()


def _began_in(process: psutil.Process, told: Path) -> bool:
    try:
        return process.environ().get("DPVIZ_LAB_REPORT") == str(told) and _lives(process)
    except (psutil.Error, OSError):  # gone, or somebody else's
        return False


def _marked(told: str, why: str) -> Marked:
    begun, outcomes = "", {}
    for line in told.splitlines():
        entry = json.loads(line)
        if "passed" in entry:
            outcomes[entry["cell"]] = Outcome(passed=entry["passed"], why=entry["why"])
        else:
            begun = entry["cell"]
    late = [cell for cell, outcome in outcomes.items() if LATE.match(outcome.why)]
    if late:  # interrupted by nbval
        return Marked(outcomes=outcomes, stopped=late[0], why="took too long")
    unended = begun if begun not in outcomes else ""
    return Marked(outcomes=outcomes, stopped=unended, why=why or ("its kernel ended" if unended else ""))
