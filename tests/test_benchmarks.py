"""The benchmark leaves out a way that hangs or fails, and writes no file that nobody asked for."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SAID = json.dumps({"first_s": 2.0, "warm_s": [0.5], "bytes": 10**6})


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("bench_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("ways", None)


def answering(bench, monkeypatch, *, hangs=(), fails=()):
    """Let the interpreters answer at once, those of the ways in `hangs` not in time, those in `fails` with an error."""
    scripts = {bench.ways.HEAD + script: name for name, (script, _) in bench.ways.WAYS.items()}

    def run(words, *, timeout, **options):
        name = scripts[Path(words[1]).read_text()]
        if name in hangs:
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(words, int(name in fails), "" if name in fails else SAID, "it broke")

    monkeypatch.setattr(bench.subprocess, "run", run)
    monkeypatch.setattr(bench, "NEEDS", {})


def main(bench, monkeypatch, *options):
    monkeypatch.setattr(sys, "argv", ["run.py", "--rounds", "1", *options])
    return bench.main()


def test_a_way_that_hangs_or_fails_is_left_out_with_a_sentence(bench, monkeypatch, capsys):
    hangs, fails, *_ = [name for name in bench.ways.WAYS if name != "dpviz"]
    answering(bench, monkeypatch, hangs=[hangs], fails=[fails])
    assert main(bench, monkeypatch) == 0
    out, said = capsys.readouterr()
    assert f"{hangs} on 4 ranks did not end within 120 s: left out" in said
    assert f"{fails} on 4 ranks failed 3 times: it broke: left out" in said
    assert "| dpviz | 2.0 s | 500 ms | 1.0 | 1 MB |" in out and f"| {hangs} |" not in out and f"| {fails} |" not in out


def test_without_dpviz_the_others_are_still_told(bench, monkeypatch, capsys):
    answering(bench, monkeypatch, hangs=["dpviz"])
    assert main(bench, monkeypatch) == 0
    assert "| 2.0 s | 500 ms | - | 1 MB |" in capsys.readouterr().out


def test_a_file_is_written_only_where_it_was_asked_for(bench, monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(Path, "write_text", _noting(Path.write_text, written))
    answering(bench, monkeypatch)
    main(bench, monkeypatch)
    assert {path.name for path in written} == {"way.py"}
    main(bench, monkeypatch, "--out", str(tmp_path / "numbers.json"))
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["conditions"]["rounds"] == 1 and numbers["ways"]["dpviz"]["warm_s"] == 0.5


def _noting(write_text, written):
    def noted(path, *arguments, **options):
        written.append(path)
        return write_text(path, *arguments, **options)

    return noted
