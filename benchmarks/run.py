"""How fast, how large, how true: `make bench`, or

    python benchmarks/run.py [--rounds 3] [--only ways,slider] [--out FILE.json] [--markdown FILE.md]

ways          the same DDP gradient by dpviz and by what a user would do otherwise, on 2 to 32 ranks
slider        from a released slider to the new picture, in a real JupyterLab and Chromium
collectives   bytes and, on a link, seconds of each collective, over their formulas
measuring     what dpviz's own measuring adds to a training step
growth        a warm launch and a step, as k, the model and K grow

A table a part goes to stdout, progress to stderr; --out keeps every number, with its spread and the conditions. The
peers (accelerate, ipyparallel) are the extra `bench`. What is missing, fails or is wrong is left out, with a sentence.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

import conditions
from report import Report

PARTS = {  # name: its module, with measure(rounds, report) and table(rows)
    "ways": "compare",
    "slider": "slider",
    "collectives": "collectives",
    "measuring": "measuring",
    "growth": "growth",
}


def main() -> int:
    options = _options()
    report, numbers = Report(), {"conditions": conditions.at_begin(options.rounds)}
    if numbers["conditions"]["busy"]:
        load, cores = (numbers["conditions"][name] for name in ("load_at_begin", "cores"))
        report.progress(f"the machine is busy: a load of {load:.1f} on {cores} cores. Use the ratios, not the times.")
    tables = []
    for name in options.only:
        report.progress(f"{name} ...")
        try:
            part = importlib.import_module(PARTS[name])
            numbers[name] = part.measure(options.rounds, report)
            tables.append(f"## {name}\n\n{part.table(numbers[name])}\n")
            print(tables[-1], flush=True)
        except Exception as error:  # the other parts are not lost
            traceback.print_exc()
            report.leave_out(name, f"{name} failed: {type(error).__name__}: {error}")
    numbers["conditions"]["load_at_end"] = os.getloadavg()[0]
    numbers["left_out"] = report.left_out
    if options.out:
        options.out.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        head = f"# Benchmarks\n\n`make bench`, {conditions.line(numbers['conditions'])}\n"
        options.markdown.write_text("\n".join([head, *tables]), encoding="utf-8")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--rounds", type=_count, default=3, help="turns that each part takes")
    parser.add_argument("--only", type=_parts, default=[*PARTS], help="the parts to run, with commas between")
    parser.add_argument("--out", type=Path, help="a file for the numbers, as JSON")
    parser.add_argument("--markdown", type=Path, help="a file for the tables")
    return parser.parse_args()


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} was given, but it must be a whole number, 1 or more")
    return int(text)


def _parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no part of them: take some of {', '.join(PARTS)}")
    return [name for name in PARTS if name in names]


if __name__ == "__main__":
    sys.exit(main())
