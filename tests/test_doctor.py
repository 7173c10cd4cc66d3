"""The doctor: each line true of this machine, a remedy where something fails, and an exit status for what is needed."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import dpviz
from dpviz import doctor
from dpviz.doctor import Finding
from dpviz.ranks import link

GOOD = Finding(name="good", ok=True, needed=True, detail="works")
BAD = Finding(name="bad", ok=False, needed=True, detail="broken", remedy="Mend it.")
UNNEEDED = Finding(name="extra", ok=False, needed=False, detail="absent", remedy="Add it.")


@pytest.mark.parametrize("findings, status", [([GOOD], 0), ([GOOD, UNNEEDED], 0), ([GOOD, BAD, UNNEEDED], 1)])
def test_only_what_is_needed_decides_the_exit_status(findings, status, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "CHECKS", [lambda finding=finding: finding for finding in findings])
    assert doctor.main([]) == status
    printed = capsys.readouterr().out
    assert ("Everything the lessons need works." in printed) is (status == 0)
    assert ("-> Mend it." in printed) is (BAD in findings) and ("-> Add it." in printed) is (UNNEEDED in findings)
    assert doctor.main(["--json"]) == status
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is (status == 0)
    assert answer["findings"][0] == {"name": "good", "ok": True, "needed": True, "detail": "works", "remedy": ""}


def test_a_line_says_whether_it_matters():
    assert [doctor.line(finding)[:5] for finding in (GOOD, BAD, UNNEEDED)] == ["yes  ", "no   ", "(no) "]
    assert "->" not in doctor.line(Finding(name="n", ok=True, needed=True, detail="d", remedy="not shown"))


def test_a_check_that_breaks_is_a_finding():
    def own_check():
        raise OSError("no such thing")

    finding = doctor.examine(own_check)
    assert (finding.name, finding.ok, finding.needed) == ("own check", False, True)
    assert finding.detail == "the check itself failed: OSError: no such thing"


def test_an_optional_check_that_breaks_changes_nothing(monkeypatch):
    def broken():
        raise OSError

    monkeypatch.setattr(doctor, "OPTIONAL", (broken,))
    assert doctor.examine(broken).needed is False


def test_every_optional_check_is_one_of_the_checks():
    assert set(doctor.OPTIONAL) < set(doctor.CHECKS)


def test_an_old_python_is_named(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 9))
    finding = doctor.python()
    assert not finding.ok and finding.needed and "3.11" in finding.remedy


@pytest.mark.parametrize("results, right", [([3.0, 3.0], 4), ([3.0, 1.0], 2), ([1.0, 2.0], 0), ([], 0)])
def test_the_sum_must_be_right_on_both_ranks(results, right, monkeypatch):
    monkeypatch.setattr(dpviz, "launch", lambda *_, **__: SimpleNamespace(results=results), raising=False)
    finding = doctor.real_ranks()
    assert finding.ok is (right == 4) and finding.needed and f"{right} of 4 sums right" in finding.detail


def test_a_launch_that_fails_is_a_finding_that_says_why(monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("rank 1 was killed")

    monkeypatch.setattr(dpviz, "launch", refuse, raising=False)
    finding = doctor.examine(doctor.real_ranks)
    assert not finding.ok and finding.needed and "rank 1 was killed" in finding.detail


@pytest.mark.parametrize("module, check", [("torch", "torch"), ("plotly", "widgets"), ("ipykernel", "jupyterlab")])
def test_a_library_that_cannot_be_imported_is_named_with_its_remedy(module, check, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    finding = getattr(doctor, check)()
    assert not finding.ok and finding.needed and f"{module}: " in finding.detail and "pip install" in finding.remedy


@pytest.mark.parametrize("cores, memory, ok", [(4, 16.0, True), (1, 16.0, False), (4, 2.0, False), (2, None, True)])
def test_a_small_machine_is_told_what_to_expect(cores, memory, ok, monkeypatch):
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: range(cores), raising=False)
    monkeypatch.setattr(doctor, "_memory_gib", lambda: memory)
    finding = doctor.cores_and_memory()
    assert finding.ok is ok and not finding.needed


@pytest.mark.parametrize("start_method, wire, environment", [("fork", "measured", {}), ("spawn", "counted", True)])
def test_how_ranks_start_and_bytes_are_read(start_method, wire, environment, monkeypatch):
    if environment:
        monkeypatch.setenv("DPVIZ_START_METHOD", "spawn")
        monkeypatch.setenv("DPVIZ_WIRE", "counted")
    elif sys.platform != "linux":
        pytest.skip("fork and the wire counters are Linux's")
    assert doctor.start_method().detail.startswith(start_method)
    assert doctor.wire_counters().detail.startswith(wire)
    assert doctor.wire_counters().ok is (wire == "measured")


@pytest.mark.parametrize(
    "ok, reason, latency, detail",
    [
        (True, "", True, "a network interface for each rank, whose rate and delay can be set"),
        (
            True,
            "",
            False,
            "a network interface for each rank, whose rate can be set (no delay: this kernel lacks netem)",
        ),
        (False, "network namespaces are refused (No space left on device)", False, "No space left on device"),
    ],
)
def test_links_are_reported_with_the_kernels_reason(ok, reason, latency, detail, monkeypatch):
    monkeypatch.setattr(link.Link, "supported", staticmethod(lambda: link.Support(ok, reason, latency)))
    finding = doctor.network_interfaces()
    assert finding.ok is ok and not finding.needed and detail in finding.detail


def test_without_linux_there_are_no_links(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.network_interfaces().detail == "network interfaces for ranks need Linux"


def test_a_missing_browser_is_optional(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    finding = doctor.browser()
    assert not finding.ok and not finding.needed and "no Chromium" in finding.detail


def test_this_machine_passes_on_real_ranks():
    done = subprocess.run(
        [sys.executable, "-m", "dpviz", "doctor", "--json"], capture_output=True, text=True, timeout=180, check=False
    )
    answer = json.loads(done.stdout)
    assert done.returncode == 0 and answer["ok"], answer
    assert [finding["name"] for finding in answer["findings"]] == [
        "python",
        "torch",
        "cores, memory",
        "real ranks",
        "start of ranks",
        "bytes on the wire",
        "links",
        "widgets",
        "jupyterlab",
        "browser tests",
    ]
