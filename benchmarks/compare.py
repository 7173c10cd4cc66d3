"""Each way of running ranks against the others: the same DDP gradient in a new interpreter, warm, and its memory, on 4
ranks in `rounds` turns, then once each on 2, 8, 16 and 32 ranks.

A way that fails, hangs, or finds another gradient than one process on the whole batch is left out. So is one on more
than 8 ranks that was slow on half as many, and one that would take the machine's memory.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gradient
import psutil
import ways
from report import markdown, number, ratio, spread

HERE = Path(__file__).resolve().parent
RANKS, GROWTH = 4, (2, 8, 16, 32)
TRIES = 3  # a rank that torch spawned aborts now and then as its interpreter ends
TIMEOUT_S = 120
ALWAYS, SLOW_S = 8, 10  # beyond so many ranks a way is not tried that took longer on fewer
TOLERANCE = 1e-5  # of the gradient's norm, relative: it is computed in float32
COLUMNS = ("first_s", "warm_s", "megabytes")


class Failed(Exception):
    """A way did not say what it measured, or found something else; the sentence tells why."""


def measure(rounds, report):
    """Return a row a way and k: way, k, runs, the spread of first_s, warm_s and megabytes, and the ratio of each median
    to dpviz's (over_dpviz). The ways take turns, so that a busy moment hits all alike.
    """
    found = {}  # (way, k): what each interpreter said
    usable = [name for name in ways.WAYS if importlib.util.find_spec(ways.NEEDS.get(name, "torch"))]
    for name in [name for name in ways.WAYS if name not in usable]:
        report.leave_out(name, f"{name} is not installed (pip install -e '.[bench]')")
    for turn, k in [*((turn, RANKS) for turn in range(1, rounds + 1)), *((1, k) for k in GROWTH)]:
        for name in list(usable):
            try:
                _refuse_what_is_too_much(name, found, k=k)
                said, took_s = _timed(name, k=k)
            except Failed as failed:  # the rounds of the others are not lost
                report.leave_out(f"{name}, {k} ranks", str(failed))
                usable.remove(name)
                found.pop((name, k), None)
                continue
            found.setdefault((name, k), []).append({**said, "took_s": took_s})
            report.progress(f"ways: {name}, {k} ranks, turn {turn}: first result after {said['first_s']:.1f} s")
    rows = [_row(name, k, some) for (name, k), some in sorted(found.items(), key=lambda one: one[0][1])]
    own = {row["k"]: row for row in rows if row["way"] == "dpviz"}
    for row in rows:
        row["over_dpviz"] = {c: ratio(row[c], own[row["k"]][c]) if row["k"] in own else None for c in COLUMNS}
    return rows


def table(rows):
    head = ["4 ranks", "first result (s)", "over dpviz", "warm (ms)", "over dpviz", "memory, PSS (MB)", "over dpviz"]
    compared = []
    for row in rows:
        if row["k"] == RANKS:
            cells = [row["way"]]
            for column, factor, digits in zip(COLUMNS, (1, 1000, 1), (1, 0, 0), strict=True):
                cells += [number(factor * row[column]["median"], digits), number(row["over_dpviz"][column])]
            compared.append(cells)
    ks, at = sorted({row["k"] for row in rows}), {(row["way"], row["k"]): row for row in rows}
    grown = []
    for column, factor, digits, unit in (
        ("first_s", 1, 1, "first result (s)"),
        ("warm_s", 1000, 0, "warm (ms)"),
        ("megabytes", 1, 0, "memory (MB)"),
    ):
        for name in dict.fromkeys(row["way"] for row in rows):
            some = [at.get((name, k)) for k in ks]
            cells = [number(row and factor * row[column]["median"], digits) for row in some]
            grown.append([name, unit, *cells])
    return f"{markdown(head, compared)}\n\n{markdown(['k, ranks', '', *map(str, ks)], grown)}"


def one(name, *, k):
    """Run one way in a new interpreter and return what it says. Raises Failed where it fails every time, once does not
    end in time, or finds another gradient.
    """
    script, more = ways.WAYS[name]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(HERE.parent)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "way.py")
        path.write_text(ways.HEAD + script)
        for _ in range(TRIES):
            words = [sys.executable, str(path), str(time.time()), str(k), str(more), str(HERE)]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
            except subprocess.TimeoutExpired:
                raise Failed(f"{name} on {k} ranks did not end within {TIMEOUT_S} s") from None
            lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode == 0 and lines:
                return _checked(name, json.loads(lines[-1]), k=k)
    raise Failed(f"{name} on {k} ranks failed {TRIES} times: {done.stderr[-2000:]}")


def _checked(name, said, *, k):
    right = gradient.of_the_whole_batch(k)
    wrong = [norm for norm in said["norms"] if not math.isclose(norm, right, rel_tol=TOLERANCE)]
    if wrong:
        raise Failed(f"{name} on {k} ranks found a gradient of norm {wrong[0]}, but {right} is right: wrong, not timed")
    if len(said["norms"]) < k:
        raise Failed(f"{name} on {k} ranks told {len(said['norms'])} gradients, not one a rank: wrong, not timed")
    return said


def _timed(name, *, k):
    start = time.time()
    return one(name, k=k), time.time() - start


def _refuse_what_is_too_much(name, found, *, k):
    before = [(ranks, some[-1]) for (way, ranks), some in found.items() if way == name and ranks < k]
    if not before:
        return
    ranks, last = max(before, key=lambda pair: pair[0])
    needed, free = last["bytes"] * k / ranks, psutil.virtual_memory().available
    if k > ALWAYS and last["took_s"] > SLOW_S:
        raise Failed(f"{name} took {last['took_s']:.0f} s on {ranks} ranks and was not tried on {k} or more")
    if needed > free / 2:
        raise Failed(f"{name} would need {needed / 1e9:.1f} GB on {k} ranks, of which {free / 1e9:.1f} are free")


def _row(name, k, some):
    return {
        "way": name,
        "k": k,
        "runs": len(some),
        "first_s": spread([said["first_s"] for said in some]),
        "warm_s": spread([second for said in some for second in said["warm_s"]]),
        "megabytes": spread([said["bytes"] / 1e6 for said in some]),
    }
