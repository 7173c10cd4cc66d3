"""How fast and how large, against what a user would do otherwise: `make bench`, or

    python benchmarks/run.py [--rounds 3] [--out results.json]

The same DDP gradient on 4 ranks by each way, the ways in turns, medians over the rounds. Then dpviz alone: how memory
and time grow with k. The peers (accelerate, ipyparallel) are the extra `bench`; one that is missing is left out, and
so is a way that fails or does not end in time, and that is said. Numbers are printed, and kept where --out is given.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ways

HERE = Path(__file__).resolve().parent
NEEDS = {"accelerate debug_launcher": "accelerate", "ipyparallel": "ipyparallel"}
TRIES = 3  # a rank that torch spawned aborts now and then as its interpreter ends
TIMEOUT_S = 120


class Failed(Exception):
    """A way did not say what it measured; the sentence tells why."""


def measure(name: str, *, k: int) -> dict:
    """Run one way in a new interpreter and return what it says. Raises Failed where it fails every time, or once does
    not end in time.
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
                return json.loads(lines[-1])
    raise Failed(f"{name} on {k} ranks failed {TRIES} times: {done.stderr[-2000:]}")


def compare(rounds: int) -> dict[str, dict]:
    """Return {way: medians}, measured in turns so that a busy moment hits all alike."""
    names = [name for name in ways.WAYS if importlib.util.find_spec(NEEDS.get(name, "torch"))]
    for name in ways.WAYS.keys() - set(names):
        print(f"{name}: not installed, left out (pip install -e '.[bench]')", file=sys.stderr)
    found: dict[str, list[dict]] = {name: [] for name in names}
    for number in range(rounds):
        for name in list(found):
            try:
                found[name].append(measure(name, k=4))
            except Failed as failed:  # the rounds of the others are not lost
                print(f"{failed}: left out", file=sys.stderr)
                del found[name]
                continue
            print(f"round {number + 1}: {name} {found[name][-1]['first_s']:.1f} s", file=sys.stderr)
    return {
        name: {
            "first_s": statistics.median(one["first_s"] for one in some),
            "warm_s": statistics.median(second for one in some for second in one["warm_s"]),
            "megabytes": statistics.median(one["bytes"] for one in some) / 1e6,
        }
        for name, some in found.items()
    }


def growth() -> list[dict]:
    """Return dpviz's start, warm time and memory for k = 2 to 32."""
    rows = []
    for k in (2, 4, 8, 16, 32):
        try:
            one = measure("dpviz", k=k)
        except Failed as failed:
            print(f"{failed}: left out", file=sys.stderr)
            continue
        warm = statistics.median(one["warm_s"])
        rows.append({"k": k, "first_s": one["first_s"], "warm_s": warm, "megabytes": one["bytes"] / 1e6})
    return rows


def table(found: dict[str, dict]) -> str:
    own = found.get("dpviz")
    lines = [
        "| way | first result, new interpreter | warm | warm, over dpviz | memory (PSS) |",
        "|---|---|---|---|---|",
    ]
    for name, one in found.items():
        times = f"{one['warm_s'] / own['warm_s']:.1f}" if own else "-"
        warm = f"{1e3 * one['warm_s']:.0f} ms"
        lines.append(f"| {name} | {one['first_s']:.1f} s | {warm} | {times} | {one['megabytes']:.0f} MB |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    options = parser.parse_args()
    found, grown = compare(options.rounds), growth()
    conditions = {"cores": os.cpu_count(), "python": platform.python_version(), "ranks": 4, "rounds": options.rounds}
    if options.out:
        numbers = {"conditions": conditions, "ways": found, "growth": grown}
        options.out.write_text(json.dumps(numbers, indent=1) + "\n")
    print(table(found))
    print("\n| k | first result | warm | memory (PSS) |\n|---|---|---|---|")
    for row in grown:
        warm = f"{1e3 * row['warm_s']:.0f} ms"
        print(f"| {row['k']} | {row['first_s']:.1f} s | {warm} | {row['megabytes']:.0f} MB |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
