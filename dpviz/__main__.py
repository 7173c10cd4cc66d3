"""python -m dpviz list | run NAME | plan | start | doctor | labs

    python -m dpviz run equivalence --world-size 4 --accumulation-steps 2 --dtype float64 --json
    python -m dpviz run equivalence --world-size 4 --link-gbps 1 --json
    python -m dpviz plan --params 7e9 --world-size 8 --memory-gb 80 --activations-gb 40 --json
    torchrun --standalone --nproc-per-node 4 -m dpviz run equivalence --world-size 4 --json

A field of the experiment's Config is an option: accumulation_steps is --accumulation-steps 2, a boolean --average
false. Exit status: 0 done, 1 a rank failed, 2 something given was wrong, 130 interrupted.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from dpviz import questions
from dpviz.questions.base import WORLD_SIZE, check_world_size, fields_of, parse

RUN_OPTIONS = {
    "world_size": None,
    "link_gbps": None,
    "link_latency_us": None,
    "timeout": "60",
    "out": None,
    "json": False,
    "backend": "gloo",
    "device": "cpu",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    command, *rest = arguments or ["--help"]
    try:
        if command in ("--help", "-h", "help"):
            print(__doc__.strip())
            return 0
        if command not in COMMANDS:
            raise ValueError(
                f"there is no command {command!r}. The commands are: {', '.join(COMMANDS)}. See python -m dpviz --help."
            )
        return COMMANDS[command](rest)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output has had enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def list_questions(arguments: list[str]) -> int:
    """Print each experiment, its question and its fields with what is allowed."""
    _nothing_left("list", [argument for argument in arguments if argument not in ("--help", "-h")])
    print("\n".join(_described(name) for name in questions.QUESTIONS))
    return 0


def run(arguments: list[str]) -> int:
    """Run an experiment and print its facts, or with --json one JSON object and nothing else on stdout."""
    name, *rest = arguments or [""]
    if name in ("", "--help", "-h"):
        print(
            f"python -m dpviz run NAME --world-size {WORLD_SIZE.default} --FIELD VALUE ..."
            " [--json] [--out FILE] [--timeout SECONDS] [--link-gbps RATE [--link-latency-us DELAY]]"
            " [--backend gloo|nccl] [--device cpu|cuda] (these two under torchrun)"
        )
        return list_questions([])
    config_class = questions.config_class(name)
    texts = _options(rest)
    if texts.pop("help", False) or texts.pop("h", False):
        print(_described(name))
        return 0
    given = {key: texts.pop(key, default) for key, default in RUN_OPTIONS.items()}
    config, timeout = parse(config_class, texts), _seconds(given["timeout"])
    world_size = check_world_size(given["world_size"] or config.implied_world_size() or WORLD_SIZE.default)
    config.check_world_size(world_size)
    out = _writable(given["out"])
    link = _link(given["link_gbps"], given["link_latency_us"])

    # From here on only the answer may go to stdout, also from C++: descriptor 1 is kept for it, the rest goes to stderr
    sys.stdout.flush()
    answer = os.dup(1)
    os.dup2(2, 1)
    from dpviz.ranks import here
    from dpviz.ranks.errors import RankError
    from dpviz.ranks.launch import launch

    try:
        done = launch(
            questions.QUESTIONS[name][0],
            config,
            world_size=world_size,
            link=link,
            timeout=timeout,
            backend=given["backend"],
            device=given["device"],
            on_print=lambda rank, line: print(f"[rank {rank}] {line}", file=sys.stderr),
        )
    except RankError as error:
        print(f"{error.why}\n{error.report}" + (f"\n{error.traceback}" if error.traceback else ""), file=sys.stderr)
        return 1
    if link and world_size > 1 and done.environment.link_gbps is None:
        print(f"no link is possible here ({link.supported().reason}): the ranks talked over loopback", file=sys.stderr)
    if here.launcher() != "torchrun" or os.environ["RANK"] == "0":  # torchrun's ranks all have the Run; one may speak
        if out:
            done.save(out)
        text = json.dumps(done.answer()) if given["json"] else _told(done)
        os.write(answer, (text + "\n").encode())
    return 0


def start(arguments: list[str]) -> int:
    from dpviz import start as module

    return module.main(arguments)


def doctor(arguments: list[str]) -> int:
    from dpviz import doctor as module

    return module.main(arguments)


def labs(arguments: list[str]) -> int:
    from dpviz.labs import command

    return command.main(arguments)


def plan(arguments: list[str]) -> int:
    """Print memory, traffic and time of each ZeRO stage and which to choose: modelled, no rank is started."""
    from dpviz.planner import Config

    texts = _options(arguments)
    if texts.pop("help", False) or texts.pop("h", False):
        print("plan: Which ZeRO stage fits, and what does it cost? (modelled)\n" + "\n".join(_fields(Config)))
        return 0
    as_json = texts.pop("json", False)
    answer = parse(Config, texts).answer()
    print(json.dumps(answer) if as_json else _planned(answer))
    return 0


COMMANDS = {"list": list_questions, "run": run, "plan": plan, "start": start, "doctor": doctor, "labs": labs}


def _described(name: str) -> str:
    """Return the question and its fields, a line each."""
    return "\n".join([f"{name}: {questions.QUESTIONS[name][1]}", *_fields(questions.config_class(name))])


def _fields(config_class: type) -> list[str]:
    return [
        f"  --{field.name.replace('_', '-'):<20} {field.allowed()} (default {_written(field.default)}): {field.help}"
        for field in fields_of(config_class)
    ]


def _planned(answer: dict) -> str:
    """Return the stages as a table, the choice and the reasons."""
    row = "{:<8}{:>15}{:>12}{:>10}{:>7}{:>14}{:>13}"
    lines = [row.format("", "model state GB", "memory GB", "free GB", "fits", "traffic GB", "step s")]
    for stage in answer["stages"]:
        gigabytes = [f"{stage[name]:.5g}" for name in ("model_state_gb", "memory_gb", "free_gb")]
        times = f"{stage['step_s']:.3g}-{stage['step_exposed_s']:.3g}"
        fits = "yes" if stage["fits"] else "no"
        lines.append(row.format(stage["name"], *gigabytes, fits, f"{stage['traffic_gb']:.5g}", times))
    choice = answer["stages"][answer["choice"]]["name"] if answer["choice"] is not None else "none"
    lines += ["", f"choice: {choice}. {answer['why']}", *answer["notes"]]
    lines += [f"\n{name}:\n{text}" for name, text in answer["settings"].items()]
    return "\n".join(["Modelled, GB = 10^9 bytes; step s: communication hidden - not hidden", *lines])


def _options(arguments: list[str]) -> dict[str, str]:
    """Return --some-name value, and --some-name=value, as {"some_name": "value"}; --json and --help take no value."""
    options, rest = {}, list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise ValueError(f"{word!r} is not an option. Write --name value, for example --world-size 4.")
        name = name.replace("-", "_")
        if name in options:
            raise ValueError(f"--{name.replace('_', '-')} was given twice. Give it once.")
        if name in ("json", "help", "h"):
            if equals:
                raise ValueError(f"--{name} takes no value. Write --{name} alone, or leave it out.")
            options[name] = True
        elif equals and value:
            options[name] = value
        elif not rest or rest[0].startswith("--"):
            raise ValueError(f"--{name.replace('_', '-')} has no value. Write --{name.replace('_', '-')} VALUE.")
        else:
            options[name] = rest.pop(0)
    return options


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"timeout is {text!r}, but it must be a number of seconds, for example --timeout 60."
        ) from None


def _writable(path: str | None) -> Path | None:
    """Check before the run, so that its result is not lost after it."""
    if path is None:
        return None
    file = Path(path)
    if file.is_dir() or not file.parent.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(
            f"--out is {path!r}, but no file can be written there. "
            "Give a file name in a folder that exists and that you may write to."
        )
    return file


def _link(gbps: str | None, latency_us: str | None):
    """Return the Link that was asked for, None where none was."""
    if gbps is None and latency_us is None:
        return None
    from dpviz.ranks.link import GBPS, LATENCY_US, Link

    if gbps is None:
        raise ValueError("--link-latency-us was given without --link-gbps. Give the link's rate too.")
    return Link(gbps=GBPS.parse(gbps), latency_us=LATENCY_US.parse(latency_us or "0"))


def _nothing_left(command: str, arguments: list[str]) -> None:
    if arguments:
        raise ValueError(f"{command} takes no {arguments[0]!r}. Write python -m dpviz {command}.")


def _told(done) -> str:
    answer = done.answer()
    lines = [f"{done.experiment}: {done.environment.line()}; bytes {done.environment.wire}"]
    lines += [f"  {name:<24} {_written(value)}" for name, value in answer["facts"].items()]
    return "\n".join(lines)


def _written(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):  # a list field's default, as it is given
        return ",".join(map(_written, value))
    if isinstance(value, dict | list):
        return json.dumps(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
