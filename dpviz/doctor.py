"""python -m dpviz doctor: what this machine can do, a line each, with the remedy where it cannot.

Only what a lesson cannot do without decides the exit status; the rest is reported and changes nothing.
"""

import argparse
import dataclasses
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
import time

OLDEST_PYTHON = (3, 11)
ENOUGH_MEMORY_GIB = 4
LAUNCH_TIMEOUT_S = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing the machine can do or not. `remedy` is empty where there is nothing to mend."""

    name: str
    ok: bool
    needed: bool  # whether a lesson cannot do without it
    detail: str
    remedy: str = ""


def main(arguments=None):
    """Print the findings. Returns 0 if everything needed works, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m dpviz doctor",
        description="Check what this machine can do. Exit status 0 if everything that the lessons need works, else 1.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args(arguments)
    findings = []
    for check in CHECKS:
        findings.append(examine(check))
        if not options.json:
            print(line(findings[-1]), flush=True)  # one by one: starting ranks takes seconds
    ok = all(finding.ok for finding in findings if finding.needed)
    if options.json:
        print(json.dumps({"ok": ok, "findings": [dataclasses.asdict(finding) for finding in findings]}, indent=1))
    else:
        print("Everything the lessons need works." if ok else "Mend what is marked 'no' above, and run this again.")
    return 0 if ok else 1


def line(finding):
    """yes/no/(no) for needed and optional things, then the name, what was found and what to do."""
    mark = "yes" if finding.ok else "no" if finding.needed else "(no)"
    remedy = f"\n{'':24}-> {finding.remedy}" if finding.remedy and not finding.ok else ""
    return f"{mark:<5}{finding.name:<19}{finding.detail}{remedy}"


def examine(check):
    """What `check` finds. One that breaks is itself a finding: the doctor reports every line, whatever happens."""
    try:
        return check()
    except Exception as error:
        return Finding(
            name=check.__name__.replace("_", " "),
            ok=False,
            needed=check not in OPTIONAL,
            detail=f"the check itself failed: {type(error).__name__}: {error}",
            remedy="Please report this with your platform and the output of python -m pip list.",
        )


def python():
    return Finding(
        name="python",
        ok=sys.version_info >= OLDEST_PYTHON,
        needed=True,
        detail=f"{platform.python_version()} on {platform.platform(terse=True)}",
        remedy="Install Python 3.11 or newer, and make the environment with it: make PY=python3.12",
    )


def torch():
    return _importable("torch", ["torch"], remedy="Say: make lab, or python -m pip install -c constraints.txt -e .")


def cores_and_memory():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory = _memory_gib()
    small = memory is not None and memory < ENOUGH_MEMORY_GIB
    detail = f"{cores} cores, " + ("memory unknown here" if memory is None else f"{memory:.1f} GiB")
    remedy = (
        "Ranks share what there is: use few of them (k = 2 or 4), and expect times that say more about this machine."
    )
    return Finding(name="cores, memory", ok=cores >= 2 and not small, needed=False, detail=detail, remedy=remedy)


def real_ranks():
    """Two ranks, one all-reduce, launched twice: the first starts the pool, the second is what a lesson feels."""
    from dpviz import launch

    results, seconds = [], []
    for _ in range(2):
        started = time.monotonic()
        results += launch(sum_of_ranks, world_size=2, timeout=LAUNCH_TIMEOUT_S, on_print=_ignore).results
        seconds.append(time.monotonic() - started)
    right = sum(result == 3.0 for result in results)
    return Finding(
        name="real ranks",
        ok=right == len(results) == 4,
        needed=True,
        detail=f"2 ranks, gloo: {right} of 4 sums right; first launch {seconds[0]:.1f} s, the next {seconds[1]:.2f} s",
        remedy="Both ranks must find 1 + 2 = 3. Check that nothing on this machine blocks connections to 127.0.0.1.",
    )


def sum_of_ranks(_):
    """What the two ranks run: each brings its rank + 1."""
    import torch
    from torch import distributed as dist

    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    return total.item()


def _ignore(rank, line):
    """What a library prints on a rank has no place between the findings."""


def start_method():
    from dpviz.ranks import sources

    method = sources.start_method()
    detail = {
        "fork": "fork: ranks start warm from a server that has everything imported",
        "spawn": "spawn: every rank imports torch itself, so a launch takes seconds more",
    }.get(method, method)
    return Finding(name="start of ranks", ok=True, needed=False, detail=detail)


def wire_counters():
    from dpviz.measure import wire
    from dpviz.records import MEASURED

    return Finding(
        name="bytes on the wire",
        ok=wire.how() == MEASURED,
        needed=False,
        detail=wire.how(),
        remedy="Only Linux has these counters. Every lesson works without them, and says that its bytes are counted.",
    )


def network_interfaces():
    """Whether ranks can be given network interfaces of their own, whose speed can be set: tried, not guessed."""
    from dpviz.ranks.link import Link

    support = Link.supported()
    what = "rate and delay can be set" if support.latency else "rate can be set (no delay: this kernel lacks netem)"
    return Finding(
        name="links",
        ok=support.ok,
        needed=False,
        detail=f"a network interface for each rank, whose {what}" if support else support.reason,
        remedy="Ranks talk over the loopback, at its own speed. An administrator can allow links: "
        "user.max_user_namespaces above 0, and on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0.",
    )


def widgets():
    return _importable(
        "widgets",
        ["ipywidgets", "anywidget", "plotly"],
        remedy="Say: python -m pip install -c constraints.txt -e . (sliders and figures need all three).",
    )


def jupyterlab():
    return _importable(
        "jupyterlab",
        ["jupyterlab", "ipykernel"],
        remedy="Say: python -m pip install -c constraints.txt -e '.[lab]'",
    )


def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    has_driver = importlib.util.find_spec("playwright") is not None
    detail = f"{found or 'no Chromium'}, {'playwright' if has_driver else 'no playwright'}"
    return Finding(
        name="browser tests",
        ok=bool(found) and has_driver,
        needed=False,
        detail=detail,
        remedy="Only tests of the panels use it. On Debian: apt-get install chromium; then pip install -e '.[test]'",
    )


CHECKS = (
    python,
    torch,
    cores_and_memory,
    real_ranks,
    start_method,
    wire_counters,
    network_interfaces,
    widgets,
    jupyterlab,
    browser,
)
OPTIONAL = (cores_and_memory, start_method, wire_counters, network_interfaces, browser)


def _importable(name, modules, *, remedy):
    """A finding about modules that must be imported, not only found: a broken install is found too."""
    found, broken = [], []
    for module in modules:
        try:
            importlib.import_module(module)
            found.append(f"{module} {importlib.metadata.version(module)}")
        except (
            Exception
        ) as error:  # a broken library raises anything at all: OSError for a missing .so, AttributeError...
            broken.append(f"{module}: {error}")
    return Finding(name=name, ok=not broken, needed=True, detail=", ".join(broken or found), remedy=remedy)


def _memory_gib():
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return None
