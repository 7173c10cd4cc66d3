"""python -m dpviz as a person or a script meets it: one JSON object on stdout, sentences on stderr, and the right
exit status.
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from dpviz.__main__ import main
from dpviz.records import Run


def dpviz(*arguments, program=(sys.executable, "-m", "dpviz"), **options):
    return subprocess.run([*program, *arguments], capture_output=True, text=True, timeout=120, check=False, **options)


def answer_here(capfd, *arguments):
    """The answer of the same command in this process, whose ranks are warm."""
    assert main(["run", *arguments, "--json"]) == 0
    return json.loads(capfd.readouterr().out)


def test_the_numbers_of_the_first_lesson():
    done = dpviz("run", "equivalence", "--world-size", "4", "--accumulation-steps", "2", "--dtype", "float64", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert set(answer) == {"experiment", "config", "environment", "facts", "wire"}
    facts = answer["facts"]
    assert facts["gradients_equal"] is True
    assert facts["max_rel_error"] < 1e-12
    assert facts["ranks_identical"] is True
    for sent, predicted, framing in zip(
        facts["wire_bytes"], facts["wire_bytes_predicted"], facts["framing_bytes_predicted"], strict=True
    ):
        assert abs(sent - predicted) < 0.02 * predicted
        assert predicted - framing == 1.5 * facts["gradient_bytes"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "equivalence", "--world-size", "0"], "world_size is 0"),
        (["run", "equivalence", "--world-size", "-1"], "world_size is -1"),
        (["run", "equivalence", "--world-size", "2.5"], "a whole number from 1 to 32"),
        (["run", "equivalence", "--world-size", "four"], "world_size is 'four'"),
        (["run", "equivalence", "--world-size", "10000"], "from 1 to 32"),
        (["run", "equivalence", "--accumulation-steps", "0"], "accumulation_steps is 0"),
        (["run", "equivalence", "--dtype", "float8"], "Did you mean float64?"),
        (["run", "equivalence", "--average", "maybe"], "average is 'maybe', but it must be true or false"),
        (["run", "equivalence", "--lr", "nan"], "lr is nan"),
        (["run", "equivalence", "--microbatch", "2"], "Did you mean --micro-batch?"),
        (["run", "equivalence", "--seed"], "--seed has no value"),
        (["run", "equivalence", "--seed", "1", "--seed", "2"], "--seed was given twice"),
        (["run", "equivalence", "4"], "'4' is not an option"),
        (["run", "equivalence", "--timeout", "soon"], "timeout is 'soon'"),
        (["run", "equivalence", "--timeout", "-1"], "timeout is -1.0"),
        (["run", "equivalence", "--out", "/no/such/folder/run.json"], "no file can be written there"),
        (["run", "equivalents"], "The experiments are: equivalence"),
        (["run", "equivalence", "--json=false"], "--json takes no value"),
        (["run", "equivalence", "--world-size="], "--world-size has no value"),
        (["run", "equivalence", "--seed", "1" + "0" * 400], "seed is"),
        (["rum"], "The commands are: list, run, plan, start, doctor"),
        (["list", "all"], "list takes no 'all'"),
    ],
)
def test_what_is_wrong_is_a_sentence_at_once(arguments, sentence):
    began = time.monotonic()
    done = dpviz(*arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert time.monotonic() - began < 5  # no rank was started, and no torch imported


def test_without_json_a_person_can_read_it():
    done = dpviz(
        "run",
        "equivalence",
        "--world-size",
        "2",
        "--model",
        "weight",
        "--data",
        "count",
        "--micro-batch",
        "3",
        "--reduction",
        "sum",
    )
    assert "2 ranks, gloo" in done.stdout.splitlines()[0]
    assert "gradient_norm            10.5" in done.stdout
    assert "reference_norm           21" in done.stdout


def test_the_run_is_saved_and_read_again(tmp_path):
    file = tmp_path / "run.json"
    done = dpviz("run", "equivalence", "--world-size", "2", "--out", str(file), "--json")
    run = Run.load(file)
    assert json.loads(done.stdout)["facts"] == run.facts
    assert run.frame()["rank"].tolist() == [0, 1]
    assert run.collectives[0][0].name == "all_reduce"


def test_list_names_every_field():
    done = dpviz("list")
    assert done.stdout.startswith("equivalence: Do k ranks")
    assert "--accumulation-steps" in done.stdout and "a whole number from 1 to 64" in done.stdout
    assert dpviz("run", "--help").stdout.endswith(done.stdout)
    one = dpviz("run", "sampler", "--help").stdout
    assert one.startswith("sampler: Which samples") and "equivalence" not in one


def test_a_rank_in_the_environment_is_not_torchruns():
    assert json.loads(dpviz("run", "sampler", "--json", env={**os.environ, "RANK": "1"}).stdout)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dpviz"]


def test_under_torchrun_one_object_from_rank_0():
    options = ["run", "equivalence", "--dtype", "float64", "--accumulation-steps", "2", "--json"]
    done = dpviz(*options, "--world-size", "2", program=TORCHRUN)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["environment"]["launcher"] == "torchrun"
    on_the_pool = json.loads(dpviz(*options, "--world-size", "2").stdout)
    assert answer["facts"] == on_the_pool["facts"]


@pytest.mark.thorough
def test_under_torchrun_another_world_size_is_a_sentence():
    wrong = dpviz("run", "equivalence", "--world-size", "3", "--json", program=TORCHRUN)
    assert wrong.returncode != 0
    assert "world_size is 3, but torchrun has 2 ranks" in wrong.stderr
    assert wrong.stdout == ""


def test_ctrl_c_ends_it_with_status_130():
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "dpviz",
            "run",
            "equivalence",
            "--steps",
            "50",
            "--accumulation-steps",
            "64",
            "--micro-batch",
            "256",
            "--world-size",
            "8",
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "interrupted"


@pytest.mark.skipif(
    os.name != "posix" or os.getuid() != 0,
    reason="only root can become somebody else; as an ordinary user every test shows it",
)
def test_an_ordinary_user_can_run_it(tmp_path):
    nobody = {
        "user": 65534,
        "group": 65534,
        "extra_groups": [],
        "cwd": "/",
        "env": {"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
    }
    try:
        subprocess.run([sys.executable, "-c", "import dpviz, torch"], check=True, capture_output=True, **nobody)
    except (subprocess.CalledProcessError, PermissionError):
        pytest.skip("this Python, or dpviz, lies where an ordinary user may not read")
    done = dpviz("run", "equivalence", "--world-size", "4", "--json", **nobody)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["facts"]["gradients_equal"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--tokens", "1/3", "--loss-sums", "8/3"], {"global_mean": 2.75}),
        (["--tokens", "10,90", "--loss-sums", "30,90"], {"mean_of_micro_means": 2.0, "global_mean": 1.2}),
        (
            ["--tokens", "10,30/60,100", "--loss-sums", "30,60/60,100"],
            {"mean_of_micro_means": 1.75, "mean_of_rank_means": 1.625, "global_mean": 1.25},
        ),
        (["--tokens", "64/2000", "--loss-sums", "128/1000"], {"mean_of_rank_means": 1.25, "weighted": 0.54651}),
        (["--tokens", "7/6", "--loss-sums", "7/84"], {"mean_of_rank_means": 7.5, "weighted": 7.0}),
    ],
)
def test_the_reported_cases_of_unequal_batches(arguments, expected, capfd):
    facts = answer_here(capfd, "unequal", *arguments)["facts"]
    assert {name: facts[name] for name in expected} == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "accumulation --sync flag_after_forward --inputs 0,1,2,3/10,11,12,13",
            {"gradients": [2.75, 10.25], "all_reduces": 1},
        ),
        (
            "accumulation --sync off_by_one --accumulation-steps 2 --scale none --inputs 1,2/3,5",
            {"gradients": [4.0, 7.0]},
        ),
        ("clipping --order clip_then_average --gradients 30,40/0.3,-0.4", {"norm": 0.4924, "update": [0.45, 0.2]}),
        ("clipping --order clip_before_unscale --gradients=0.3,0.4", {"norm": 1.526e-5, "reference_norm": 0.5}),
        ("clipping --order clip_each_shard --gradients 3/4", {"update": [1, 1], "reference": [0.6, 0.8]}),
        ("sampler --dataset-size 10 --world-size 4", {"samples": 12, "accuracy_read": 1 / 3, "accuracy_true": 0.2}),
        ("optimizer_state --fault skipped_step --fault-rank 3", {"first_divergent_step": 3, "divergent_ranks": [3]}),
        ("resume --resume-world-size 2", {"first_divergent_step": None}),
        (
            "mesh --dp 4 --tp 2 --pp 2 --micro-batch 2 --accumulation-steps 8",
            {"global_batch": 64, "distinct_samples": 64, "wrong_global_batch": 256},
        ),
    ],
)
def test_the_reported_cases_of_the_other_experiments(arguments, expected, capfd):
    facts = answer_here(capfd, *arguments.split())["facts"]
    for name, value in expected.items():
        assert facts[name] == (value if value is None else pytest.approx(value, rel=1e-3, abs=1e-9))
