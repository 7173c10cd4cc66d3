"""The launch files in cluster/, the runs that were recorded on two hosts, and the lines that lessons print for two."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import get_args_parser

from dpviz import questions
from dpviz.__main__ import RUN_OPTIONS
from dpviz.questions.base import fields_of
from dpviz.ranks.launch import launch
from dpviz.records import Run

ROOT = Path(__file__).parents[1]


def launch_lines():
    """(file, words after torchrun) of every torchrun command in cluster/."""
    for path in sorted((ROOT / "cluster").iterdir()):
        if path.suffix in (".sh", ".sbatch", ".yaml"):
            text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
            lines = [line.split("#")[0] for line in text.splitlines() if "-m dpviz run" in line.split("#")[0]]
            assert lines, f"{path.name} starts nothing"
            for line in lines:
                yield pytest.param(shlex.split(line.partition("torchrun ")[2].rstrip('"')), id=path.name)


@pytest.mark.parametrize("words", list(launch_lines()))
def test_a_launch_file_gives_options_that_exist(words):
    at = words.index("dpviz")
    known = get_args_parser()._option_string_actions
    assert not [word for word in words[: at - 1] if word.startswith("--") and word.partition("=")[0] not in known]
    name, *options = words[at + 2 :]
    allowed = {field.name for field in fields_of(questions.config_class(name))} | set(RUN_OPTIONS)
    given = [word.lstrip("-").partition("=")[0].replace("-", "_") for word in options if word.startswith("--")]
    assert given and not set(given) - allowed


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.s*")), ids=lambda path: path.name)
def test_a_shell_file_parses(path):
    subprocess.run(["bash", "-n", path], check=True, timeout=10)


@pytest.mark.parametrize("path", sorted((ROOT / "cluster").glob("*.yaml")), ids=lambda path: path.name)
def test_a_kubernetes_file_parses_and_its_job_fits_its_launch(path):
    documents = {one["kind"]: one for one in yaml.safe_load_all(path.read_text(encoding="utf-8"))}
    job, service = documents["Job"]["spec"], documents["Service"]
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] == 2
    assert service["spec"]["clusterIP"] == "None"
    assert job["template"]["spec"]["subdomain"] == service["metadata"]["name"]


# -- what was recorded, and what the lessons print


@pytest.mark.parametrize("name", ["all_reduce", "zero_0", "zero_1", "zero_2", "zero_3"])
def test_a_recorded_run_says_where_it_was_made(name):
    where = Run.load(ROOT / "lessons" / "recorded" / f"{name}.json").environment
    assert (where.launcher, where.hosts, where.backend, where.device) == ("torchrun", 2, "gloo", "cpu")
    assert where.link == "namespaces of one machine, 1 Gb/s"


@pytest.mark.parametrize("name", ["all_reduce", "zero_3"])
def test_a_recorded_run_found_what_the_pool_finds(name):
    run = Run.load(ROOT / "lessons" / "recorded" / f"{name}.json")
    module, config = f"dpviz.experiments.{run.experiment}:experiment", questions.config_class(run.experiment)
    now = launch(module, config(**run.config), world_size=run.environment.world_size)
    names = ["equal", "model_state_bytes", "final_loss"]
    if now.environment.wire == run.environment.wire:  # what is counted has no headers
        names += ["bytes_over_payload", "wire_over_payload"]
    for name in names:
        if name in run.facts:
            assert now.facts[name] == pytest.approx(run.facts[name], rel=1e-5)


def two_host_line(number):
    [lesson] = (ROOT / "lessons").glob(f"{number}_*.ipynb")
    text = lesson.read_text(encoding="utf-8").replace('\\\\\\n",\n    "', " ")
    return re.search(r"torchrun --nnodes 2 .*? -m dpviz run .*?(?=\\n)", text)[0]


@pytest.mark.thorough
@pytest.mark.parametrize("number", ["04", "05", "08", "09"])
def test_the_lessons_lines_for_two_hosts_run_as_printed(number):
    done = subprocess.run(
        [sys.executable, ROOT / "cluster" / "two_hosts.py", *shlex.split(two_host_line(number)), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"hosts": 2' in done.stdout
