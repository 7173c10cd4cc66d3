"""Records: a Run survives the file, and what JSON cannot say is said otherwise."""

import dataclasses
import json
import math

import numpy
import pytest

from dpviz.records import MEASURED, Collective, Environment, Event, Run, Step, Wire, plain

ENVIRONMENT = Environment(
    world_size=2,
    backend="gloo",
    launcher="pool",
    start_method="fork",
    cores=2,
    link="loopback",
    wire=MEASURED,
    torch="2",
    python="3",
    platform="Linux",
)
RUN = Run(
    experiment="made_up",
    config={"lr": 0.1},
    results=[{"vector": numpy.array([1.0, math.nan])}, {"vector": [math.inf, -math.inf]}],
    records=[
        [Step(step=0, loss=1.5, values={"norm": 2.0})],
        [Event(name="send", start_s=0.0, end_s=0.5, lane="wire"), {"free": 1}],
    ],
    wire=[Wire(sent=1, received=2), Wire()],
    environment=ENVIRONMENT,
    collectives=[[Collective("0", 1, "all_reduce", ((2, 3),), ("Float",))], []],
    prints=[["hello"], []],
    facts={"worst": math.inf, "equal": True, "none": None},
)


def test_a_run_survives_the_file(tmp_path):
    RUN.save(tmp_path / "run.json")
    again = Run.load(tmp_path / "run.json")
    assert numpy.isnan(again.results[0]["vector"][1]) and again.results[1]["vector"] == [math.inf, -math.inf]
    for name in ("experiment", "config", "records", "wire", "environment", "collectives", "prints", "facts"):
        assert getattr(again, name) == getattr(RUN, name), name


def test_what_json_cannot_say_are_strings():
    assert plain({"a": math.nan, "b": [math.inf, -math.inf]}) == {"a": "NaN", "b": ["Infinity", "-Infinity"]}
    assert json.loads(json.dumps(RUN.answer(), allow_nan=False))["facts"]["worst"] == "Infinity"
    assert "results" not in RUN.answer()


def test_what_cannot_be_written_is_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="a object cannot be written as JSON. Return numbers"):
        dataclasses.replace(RUN, results=[object()]).save(tmp_path / "run.json")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"experiment": "x"}', "\x00"])
def test_a_file_that_holds_no_run_is_a_sentence(tmp_path, text):
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ValueError, match="does not hold a run of dpviz"):
        Run.load(file)


def test_the_frame_is_tidy():
    frame = RUN.frame()
    assert frame.columns.tolist()[:4] == ["rank", "step", "loss", "norm"]
    assert frame["rank"].tolist() == [0, 1, 1]
    assert dataclasses.replace(RUN, records=[[], []]).frame().columns.tolist() == ["rank", "step", "loss"]


def test_a_collective_knows_its_payload_and_its_name():
    entry = RUN.collectives[0][0]
    assert entry.payload == 24
    assert str(entry) == "all_reduce of [2, 3]"


def test_the_environment_line():
    assert ENVIRONMENT.line() == "2 ranks, gloo, 2 cores, loopback"
    assert dataclasses.replace(ENVIRONMENT, world_size=1, cores=1).line() == "1 rank in this process, 1 core, loopback"
