"""The conditions that the numbers were found under, as a dict for the JSON."""

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

BUSY = 0.7  # of the cores: what others may take before the numbers are theirs, too


def at_begin(rounds):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    return {
        "cores": cores,
        "cpu": _cpu(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "load_at_begin": load,
        "busy": load > BUSY * cores,
    }


def line(conditions):
    """Return the conditions as a sentence above the tables."""
    c = conditions
    where = f"{c['cores']} cores ({c['cpu']}), Python {c['python']}, torch {c['torch']}"
    rounds = f"{c['rounds']} round{'s' * (c['rounds'] != 1)}"
    busy = "; the machine was busy: use the ratios" if c["busy"] else ""
    return f"{c['date'][:10]}, {where}, {rounds}{busy}."


def _cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
