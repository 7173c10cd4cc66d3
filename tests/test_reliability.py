"""Does it survive my students? Every fault in an interpreter of its own: what it says, how soon, that the launch after
it is right, and that nothing is left. docs/reliability.md is the table of it.
"""

import errno
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from faults import FAULTS, ON_LINKS, RIGHT
from interpreter import COMMAND_STAGES, STAGES, Interpreter, environment
from nothing_left import Watched

import dpviz
from dpviz.ranks import sources

pytestmark = pytest.mark.quiet

SUPPORT = dpviz.Link.supported()
ON = [(fault, False) for fault in FAULTS] + [(fault, True) for fault in FAULTS if fault.name in ON_LINKS]
ROOT = Path(__file__).parent.parent
UNSHARE = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
FIRST_STAGE = "the rank server starts"
INTERRUPTED_S, NEXT_S, LEFT_S = 1.0, 5.0, 5.0


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """An interpreter whose first launch was interrupted as the rank server started; it goes on through all tests."""
    with Interpreter(tmp_path_factory.mktemp("session")) as python:
        yield python, [python.do("interrupted", stage=FIRST_STAGE), *python.do("settle")]


@pytest.fixture
def python(session):
    return session[0]


def test_ctrl_c_while_the_rank_server_starts_ends_the_launch(session):
    _, (interrupted, *after) = session
    assert interrupted["came"] and interrupted["kind"] == "KeyboardInterrupt"
    assert interrupted["seconds"] < INTERRUPTED_S
    assert [answer["results"] for answer in after] == [RIGHT, None, RIGHT]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != FIRST_STAGE])
def test_ctrl_c_at_any_stage_ends_the_launch_and_the_next_one_is_right(python, stage):
    answer = python.do("interrupted", stage=stage)
    assert answer["came"] and answer["kind"] == "KeyboardInterrupt" and answer["seconds"] < INTERRUPTED_S
    after = python.do("launch")
    assert after["results"] == RIGHT and after["seconds"] < NEXT_S
    assert python.do("grown") == []


@pytest.mark.parametrize(
    ("fault", "link"), ON, ids=[f"{fault.name}-{'link' if link else 'loopback'}" for fault, link in ON]
)
def test_after_a_fault_the_next_launch_is_right_and_nothing_is_left(python, fault, link):
    if link and not SUPPORT:
        pytest.skip(f"no links here: {SUPPORT.reason}")
    answer = python.do("launch", fault=fault.name, link=link)
    assert fault.said in answer["error"] and answer["ranks"] == list(fault.ranks)
    assert answer["results"] == (None if fault.said else RIGHT)
    assert answer["seconds"] < fault.within_s
    assert python.do("launch", link=link)["results"] == RIGHT
    assert python.do("launch")["results"] == RIGHT
    assert python.do("grown") == []


def test_a_killed_idle_rank_is_replaced_and_what_it_has_started_ends_with_it(python):
    assert python.do("lose_an_idle_rank")
    assert python.do("launch")["results"] == RIGHT
    assert python.do("grown") == []


def test_when_memory_runs_out_a_rank_goes_first(python):
    scores = python.do("how_soon_the_system_ends_them")
    assert len(scores["ranks"]) == 4 and min(scores["ranks"]) > max(scores["server"], scores["caller"])


def test_sliders_moved_at_random_end_on_the_last_values(python):
    ended = python.do("sliders", seed=8, moves=25)
    assert ended["panel"] == ended["fresh"], ended["values"]
    assert python.do("launch")["results"] == RIGHT


def test_killed_in_the_middle_of_a_launch_an_interpreter_leaves_nothing(python):
    assert python.do("be_in_the_middle") == 4
    python.look()
    assert len(python.left()) >= 10  # itself, the server, four ranks, a child of each
    python.kill()
    assert python.left_after(LEFT_S) == []


def test_ctrl_c_at_any_stage_ends_a_command_with_status_130(tmp_path):
    """At the very end its answer is there, and stays right. All at once, since each waits for torch."""
    options = "run", "equivalence", "--world-size", "2", "--json"
    running = {}
    for number, stage in enumerate(COMMAND_STAGES):
        (folder := tmp_path / str(number)).mkdir()
        watched = Watched(f"{folder}", str(folder))
        code = f"import interpreter; interpreter.command({stage!r}, *{options!r})"
        running[stage] = (
            watched,
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment(folder, watched.mark),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ),
        )
    for stage, (watched, process) in running.items():
        answer, said = process.communicate(timeout=60)
        if stage == "it ends":
            assert json.loads(answer)["facts"]["gradients_equal"]
        else:
            assert (process.returncode, said, answer) == (130, "interrupted\n", ""), stage
        assert watched.left_after(LEFT_S) == [], stage


ON_A_SMALL_DISK = """
import json, os, pathlib, sys, tempfile
import interpreter, nothing_left
from dpviz.ranks import jobs

folder, room = pathlib.Path(os.environ["TMPDIR"]), pathlib.Path(os.environ["TMPDIR"], "fills it")

def full(action):
    with open(room, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass
    answer = action()
    room.unlink()
    return answer

actor, answers = interpreter.Actor(), {}
tempfile.tempdir = str(folder / "is" / "not" / "there")
jobs.warm()  # as in a notebook: nobody hears it fail
answers["no folder"] = actor.launch()
tempfile.tempdir = str(folder)
answers["full when the server starts"], answers["then"] = full(actor.launch), actor.launch()
actor.k = 3
answers["full when others meet"], answers["and then"] = full(actor.launch), actor.launch()
jobs.close()
print(json.dumps([answers, os.listdir(folder)]))
"""


def test_a_full_disk_is_a_sentence_and_with_room_the_next_launch_is_right(tmp_path):
    """A file system of 256 KiB for temporary files, mounted where nobody else sees it."""
    mount = 'mount -t tmpfs -o size=256k small "$TMPDIR" && exec "$@"'
    watched = Watched(str(tmp_path), str(tmp_path))
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", mount, "sh", sys.executable, "-c", ON_A_SMALL_DISK],
        env=environment(tmp_path, watched.mark),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if not os.environ.get("CI") and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    answers, files = json.loads(done.stdout)
    for when in ("full when the server starts", "full when others meet"):
        assert f"there is no room in {tmp_path}, where the ranks meet at a file. Make some" in answers[when]["error"]
    assert "there is no room for the ranks' temporary files: No such file" in answers["no folder"]["error"]
    assert {answers[when]["kind"] for when in answers if answers[when]["error"]} == {"RankError"}
    assert [answers[when]["results"] for when in ("then", "and then")] == [RIGHT, [6.0] * 3]
    assert answers["full when others meet"]["seconds"] < NEXT_S
    assert files == [] and watched.left_after(LEFT_S) == []


def test_a_system_full_of_processes_is_a_sentence_and_no_folder_is_left(tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(dpviz.RankError, match="server could not be started: Resource temporarily unavailable"):
        sources.RankServer()
    assert os.listdir(tmp_path) == []


def rows():
    lines = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [dict(zip(table[0], row, strict=True)) for row in table[2:]]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_table_has_the_fault_with_what_is_seen_and_by_when(fault):
    (row,) = [row for row in rows() if f"`{fault.name}`" in row["fault"]]
    assert fault.said in row["what you see"]
    assert row["within"] == fault.within
    assert row["test"].endswith("::test_after_a_fault_the_next_launch_is_right_and_nothing_is_left")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["fault"][:40])
def test_every_test_that_the_table_names_exists(row):
    named = re.findall(r"(tests/\w+\.py)::(\w+)", row["test"])
    assert named
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file} has no {name}"
