"""The benchmarks leave out what hangs, fails or is wrong, and say so; their ratios are those of the medians, their
bytes those of the formulas.
"""

import importlib
import json
import subprocess
import sys
import types
from pathlib import Path

import pytest

from dpviz.ranks.launch import launch

FOLDER = Path(__file__).parents[1] / "benchmarks"
TIMES = {"first_s": 2.0, "warm_s": [0.5], "bytes": 10**6}


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("run")
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


@pytest.fixture
def compare(bench):
    return importlib.import_module("compare")


def answering(compare, monkeypatch, *, hangs=(), fails=(), says=None, ks=(2,)):
    """Let the interpreters answer at once, those of the ways in `hangs` not in time, those in `fails` with an error;
    `says` is what a way says beside or instead of the usual, by its name. Returns the (way, k) that were asked.
    """
    scripts = {compare.ways.HEAD + script: name for name, (script, _) in compare.ways.WAYS.items()}
    asked = []

    def run(words, *, timeout, **options):
        name, k = scripts[Path(words[1]).read_text()], int(words[3])
        asked.append((name, k))
        if name in hangs:
            raise subprocess.TimeoutExpired(words, timeout)
        right = {"norms": [compare.gradient.of_the_whole_batch(k)] * k}
        said = json.dumps({**TIMES, **right, **(says or {}).get(name, {})})
        return subprocess.CompletedProcess(words, int(name in fails), "" if name in fails else said, "it broke")

    monkeypatch.setattr(compare.subprocess, "run", run)
    monkeypatch.setattr(compare.ways, "NEEDS", {})
    monkeypatch.setattr(compare, "GROWTH", ks)
    return asked


def main(bench, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["run.py", "--rounds", "1", *options])
    return bench.main()


def asked_for(bench, monkeypatch, tmp_path, *options):
    """Run the ways and return the JSON."""
    assert main(bench, monkeypatch, "--out", str(tmp_path / "numbers.json"), *options) == 0
    return json.loads((tmp_path / "numbers.json").read_text())


def test_a_way_that_hangs_or_fails_is_left_out_with_a_sentence(bench, compare, monkeypatch, capsys, tmp_path):
    hangs, fails, *_ = [name for name in compare.ways.WAYS if name != "dpviz"]
    answering(compare, monkeypatch, hangs=[hangs], fails=[fails])
    numbers = asked_for(bench, monkeypatch, tmp_path, "--only", "ways")
    out, said = capsys.readouterr()
    assert f"{hangs} on 4 ranks did not end within 120 s: left out" in said
    assert f"{fails} on 4 ranks failed 3 times: it broke: left out" in said
    assert numbers["left_out"][f"{hangs}, 4 ranks"] == f"{hangs} on 4 ranks did not end within 120 s"
    assert "| dpviz | 2.0 | 1.0 | 500 | 1.0 | 1 | 1.0 |" in out and f"| {hangs} |" not in out
    assert {row["way"] for row in numbers["ways"]} == {*compare.ways.WAYS} - {hangs, fails}


def test_without_dpviz_the_others_are_still_told(bench, compare, monkeypatch, capsys):
    answering(compare, monkeypatch, hangs=["dpviz"])
    assert main(bench, monkeypatch, "--only", "ways") == 0
    assert "| ipyparallel | 2.0 | - | 500 | - | 1 | - |" in capsys.readouterr().out


def test_a_file_is_written_only_where_it_was_asked_for(bench, compare, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(Path, "write_text", _noting(Path.write_text, written))
    answering(compare, monkeypatch)
    main(bench, monkeypatch, "--only", "ways")
    assert {path.name for path in written} == {"way.py"}
    numbers = asked_for(bench, monkeypatch, tmp_path, "--only", "ways", "--markdown", str(tmp_path / "tables.md"))
    assert numbers["conditions"]["rounds"] == 1 and numbers["conditions"]["cores"] >= 1
    assert numbers["ways"][0]["warm_s"] == {"median": 0.5, "min": 0.5, "max": 0.5}
    lines = (tmp_path / "tables.md").read_text().splitlines()
    assert lines[0] == "# Benchmarks" and "cores" in lines[2] and "1 round" in lines[2]
    assert lines[4] == "## ways"


def _noting(write_text, written):
    def noted(path, *arguments, **options):
        written.append(path)
        return write_text(path, *arguments, **options)

    return noted


def test_ratios_are_those_of_the_medians_over_dpviz_on_as_many_ranks(bench, compare, monkeypatch, capsys, tmp_path):
    slow = {"first_s": 5.0, "warm_s": [10.0, 99.0, 1.0], "bytes": 3 * 10**6}
    answering(compare, monkeypatch, says={"torchrun": slow}, ks=(2, 8))
    rows = asked_for(bench, monkeypatch, tmp_path, "--only", "ways")["ways"]
    torchrun = [row for row in rows if row["way"] == "torchrun"]
    assert [row["k"] for row in torchrun] == [2, 4, 8]
    for row in torchrun:
        assert row["over_dpviz"] == {"first_s": 2.5, "warm_s": 20.0, "megabytes": 3.0}
        assert row["warm_s"] == {"median": 10.0, "min": 1.0, "max": 99.0}
    out = capsys.readouterr().out
    assert "| torchrun | 5.0 | 2.5 | 10000 | 20.0 | 3 | 3.0 |" in out
    assert "| torchrun | warm (ms) | 10000 | 10000 | 10000 |" in out


@pytest.mark.parametrize(
    ("norms", "sentence"),
    [
        ([0.5] * 4, "torchrun on 4 ranks found a gradient of norm 0.5, but 0.2"),
        ([], "torchrun on 4 ranks told 0 gradients, not one a rank: wrong, not timed"),
    ],
)
def test_a_way_with_another_gradient_is_said_to_be_wrong_and_not_timed(
    bench, compare, monkeypatch, capsys, norms, sentence
):
    answering(compare, monkeypatch, says={"torchrun": {"norms": norms}})
    assert main(bench, monkeypatch, "--only", "ways") == 0
    out, said = capsys.readouterr()
    assert sentence in said and "wrong, not timed: left out" in said
    assert "torchrun" not in out


def test_what_ranks_find_is_what_one_process_finds_on_the_whole_batch(bench):
    gradient = importlib.import_module("gradient")
    whole = gradient.of_the_whole_batch(3)
    assert launch(gradient.gradient, world_size=3).results == pytest.approx([whole] * 3, rel=1e-5)
    assert gradient.of_the_whole_batch(1) != pytest.approx(whole, rel=1e-3)  # what a rank finds alone


def test_a_slow_way_is_not_tried_on_more_than_8_ranks_nor_one_that_needs_too_much_memory(
    bench, compare, monkeypatch, capsys
):
    asked = answering(compare, monkeypatch, says={"ipyparallel": {"bytes": 10**15}}, ks=(2, 8, 16, 32))
    monkeypatch.setattr(compare, "_timed", lambda name, *, k: (compare.one(name, k=k), 100.0))
    assert main(bench, monkeypatch, "--only", "ways") == 0
    assert {k for name, k in asked if name == "torchrun"} == {2, 4, 8}
    assert {k for name, k in asked if name == "ipyparallel"} == {2, 4}
    said = capsys.readouterr().err
    assert "torchrun took 100 s on 8 ranks and was not tried on 16 or more: left out" in said
    assert "ipyparallel would need 2000000.0 GB on 8 ranks" in said


def fake(bench, monkeypatch, **parts):
    """Let the benchmarks have just these parts: what each measures, or the error it raises. Returns what was run."""
    began = []

    def module(name, found):
        def measure(rounds, report):
            began.append(name)
            if isinstance(found, Exception):
                raise found
            return [{"found": found}]

        return types.SimpleNamespace(measure=measure, table=lambda rows: f"| {rows[0]['found']} |")

    for name, found in parts.items():
        monkeypatch.setitem(sys.modules, name, module(name, found))
    monkeypatch.setattr(bench, "PARTS", {name: name for name in parts})
    return began


def test_only_runs_the_parts_that_were_asked_for(bench, monkeypatch, capsys):
    began = fake(bench, monkeypatch, first=1, second=2, third=3)
    assert main(bench, monkeypatch, "--only", "third,first") == 0
    assert began == ["first", "third"]
    assert capsys.readouterr().out == "## first\n\n| 1 |\n\n## third\n\n| 3 |\n\n"
    assert main(bench, monkeypatch) == 0
    assert began[2:] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--only", "first,tenth"), "'tenth' is no part of them: take some of first, second"),
        (("--rounds", "0"), "0 was given, but it must be a whole number, 1 or more"),
    ],
)
def test_what_cannot_be_is_a_sentence(bench, monkeypatch, capsys, options, sentence):
    fake(bench, monkeypatch, first=1, second=2)
    with pytest.raises(SystemExit):
        main(bench, monkeypatch, *options)
    assert sentence in capsys.readouterr().err


def test_a_part_that_fails_is_left_out_with_a_sentence_and_the_others_are_told(bench, monkeypatch, capsys, tmp_path):
    fake(bench, monkeypatch, first=ValueError("no luck"), second=2)
    numbers = asked_for(bench, monkeypatch, tmp_path)
    out, said = capsys.readouterr()
    assert "first failed: ValueError: no luck: left out" in said and "| 2 |" in out
    assert numbers["left_out"] == {"first": "first failed: ValueError: no luck"}
    assert numbers["second"] == [{"found": 2}] and "first" not in numbers


@pytest.mark.parametrize(("load", "busy"), [(50_000.0, True), (0.0, False)])
def test_a_busy_machine_is_said(bench, monkeypatch, capsys, tmp_path, load, busy):
    fake(bench, monkeypatch, first=1)
    monkeypatch.setattr(bench.os, "getloadavg", lambda: (load, 0.0, 0.0))
    conditions = asked_for(bench, monkeypatch, tmp_path)["conditions"]
    assert conditions["busy"] is busy and conditions["load_at_begin"] == conditions["load_at_end"] == load
    assert ("the machine is busy: a load of 50000.0" in capsys.readouterr().err) is busy


def test_without_a_browser_the_slider_is_left_out_with_a_sentence(bench, monkeypatch, tmp_path):
    import browser

    monkeypatch.setattr(browser, "missing", lambda: "no chromium was found")
    numbers = asked_for(bench, monkeypatch, tmp_path, "--only", "slider")
    assert numbers["left_out"] == {"slider": "no picture can be waited for: no chromium was found"}
    assert numbers["slider"] == []


def test_real_bytes_of_every_collective_are_the_formulas_to_the_byte(bench):
    collectives, report = (importlib.import_module(name) for name in ("collectives", "report"))
    rows = collectives.measure(1, report.Report(), ks=(2, 3), sizes=(1 << 16,))
    known = [row for row in rows if row["exact_bytes"]]
    assert len(rows) == 2 * len(collectives.CALLS) == len(known) + 2  # of an all_to_all the headers are not known
    for row in rows:
        assert row["sent_bytes"] == row["exact_bytes"] or row["collective"] == "all_to_all"
        twice = (row["collective"], row["by"]) == ("reduce_scatter", "gloo")
        assert row["sent_over_formula"] == pytest.approx([2 if twice else 1], rel=0.05)
        assert row["formula_seconds"] is None or row["formula_seconds"] > 0
    assert "| reduce_scatter | gloo | 2.0" in collectives.table(rows)


def test_a_collective_that_brings_wrong_numbers_is_found_out_and_not_told(bench, monkeypatch):
    collectives, report = (importlib.import_module(name) for name in ("collectives", "report"))
    key = "all_reduce", "gloo"

    def forgetful(config):
        import collectives

        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(collectives.CALLS, key, lambda tensor: None)
            return collectives.experiment(config)

    config = {"collective": "all_reduce", "by": "gloo", "bytes": 64, "repeats": 0}
    run = launch(forgetful, config, world_size=2)
    assert [result["right"] for result in run.results] == [False, False]
    monkeypatch.setattr(collectives.dpviz, "launch", lambda *_, **__: run)
    with pytest.raises(ValueError, match="all_reduce by gloo on 2 ranks brought wrong numbers"):
        collectives.measure(1, report.Report(), ks=(2,), sizes=(64,), calls=(key,))


@pytest.mark.thorough
def test_every_instrument_is_timed_beside_bare_torch(bench):
    measuring, report = (importlib.import_module(name) for name in ("measuring", "report"))
    rows = measuring.measure(1, report.Report(), steps=3, k=2)
    assert [row["what"] for row in rows] == [measuring.BARE, *measuring.INSTRUMENTS]
    assert [row["steps"] for row in rows] == [2 * 3, *[2 * 3 * measuring.LAUNCHES] * len(measuring.INSTRUMENTS)]
    by_name = {row["what"]: row for row in rows}
    assert by_name[measuring.BARE]["over_bare"] == by_name[measuring.OFF]["over_off"] == 1.0
    for row in rows:
        assert row["over_off"] == row["step_s"]["median"] / by_name[measuring.OFF]["step_s"]["median"]
    assert f"| {measuring.OFF} |" in measuring.table(rows)


def test_the_bytes_of_an_update_do_not_grow_with_K(bench):
    growth, report = (importlib.import_module(name) for name in ("growth", "report"))
    rows = growth.measure(1, report.Report(), grown={"K": (1, 4)})
    assert [row["K"] for row in rows] == [1, 4]
    assert rows[0]["sent_over_formula"] == rows[1]["sent_over_formula"] == pytest.approx(1.0, rel=0.01)
    assert "| K | 4 | 100,352 | 4 |" in growth.table(rows)
