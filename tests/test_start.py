"""The working copy: cleared, and the learner's own once they have changed it. Then JupyterLab, on 127.0.0.1 alone."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dpviz import start

NOBODY = 65534


def notebook(*sources, output="4"):
    """A notebook as JupyterLab stores it, with outputs."""
    cells = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "metadata": {"tags": ["kept"], "execution": {"iopub.execute_input": "2026-01-01"}},
            "execution_count": number,
            "outputs": [{"output_type": "stream", "name": "stdout", "text": [output]}],
            "source": [source],
        }
        for number, source in enumerate(sources, start=1)
    ]
    prose = {"cell_type": "markdown", "id": "prose", "metadata": {}, "source": ["# 数据并行"]}
    metadata = {"kernelspec": {"name": "python3"}, "widgets": {"state": {}}}
    return json.dumps({"cells": [prose, *cells], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def lessons(tmp_path):
    source = tmp_path / "lessons"
    (source / "recorded").mkdir(parents=True)
    (source / "00_first.ipynb").write_text(notebook("print(2 + 2)"), encoding="utf-8")
    (source / "01_second.ipynb").write_text(notebook("print(4)"), encoding="utf-8")
    (source / "recorded" / "run.json").write_text("{}")
    (source / "execute.py").write_text("a tool of the repository")
    return source


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "work"


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_copy_has_no_outputs_and_keeps_everything_else(lessons, copy):
    assert start.copy_lessons(lessons, copy) == []
    assert names(copy) == [".dpviz.json", "00_first.ipynb", "01_second.ipynb", "recorded/run.json"]
    prose, code = json.loads((copy / "00_first.ipynb").read_text(encoding="utf-8"))["cells"]
    assert code["outputs"] == [] and code["execution_count"] is None
    assert code["metadata"] == {"tags": ["kept"]} and code["source"] == ["print(2 + 2)"]
    assert prose["source"] == ["# 数据并行"]
    assert "数据并行" in (copy / "00_first.ipynb").read_text(encoding="utf-8")  # and can be read in a diff
    assert "widgets" not in json.loads((copy / "00_first.ipynb").read_text(encoding="utf-8"))["metadata"]


def test_the_labs_come_along_as_released_and_their_links_lead_to_the_copy(lessons, copy):
    released = lessons.parent / "labs" / "release"
    released.mkdir(parents=True)
    cell = {"cell_type": "markdown", "id": "a", "metadata": {}, "source": "[lesson](../../lessons/00_first.ipynb)"}
    lab = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (released / "lab01.ipynb").write_text(json.dumps(lab))
    (released.parent / "source").mkdir()
    (released.parent / "source" / "lab01.py").write_text("the solutions")
    start.copy_lessons(lessons, copy)
    assert "[lesson](../00_first.ipynb)" in (copy / "labs" / "lab01.ipynb").read_text()
    assert not list(copy.rglob("*.py"))


def test_the_lessons_themselves_are_left_alone(lessons, copy):
    before = {name: (lessons / name).read_bytes() for name in names(lessons)}
    start.copy_lessons(lessons, copy)
    assert {name: (lessons / name).read_bytes() for name in names(lessons)} == before


def test_a_second_start_changes_nothing(lessons, copy):
    start.copy_lessons(lessons, copy)
    before = {path: path.stat().st_mtime_ns for path in copy.glob("*.ipynb")}
    assert start.copy_lessons(lessons, copy) == []
    assert {path: path.stat().st_mtime_ns for path in copy.glob("*.ipynb")} == before


def test_new_outputs_alone_are_no_new_version(lessons, copy):
    start.copy_lessons(lessons, copy)
    (lessons / "00_first.ipynb").write_text(notebook("print(2 + 2)", output="4.0"), encoding="utf-8")
    assert start.copy_lessons(lessons, copy) == []


def test_a_new_version_replaces_an_untouched_copy(lessons, copy):
    start.copy_lessons(lessons, copy)
    (lessons / "00_first.ipynb").write_text(notebook("print(5)"), encoding="utf-8")
    [line] = start.copy_lessons(lessons, copy)
    assert line == "00_first.ipynb: a new version, taken (you had not changed yours)"
    assert "print(5)" in (copy / "00_first.ipynb").read_text(encoding="utf-8")
    assert names(copy) == [".dpviz.json", "00_first.ipynb", "01_second.ipynb", "recorded/run.json"]


def test_what_the_learner_changed_stays_and_each_new_version_comes_beside_it_once(lessons, copy):
    start.copy_lessons(lessons, copy)
    mine = copy / "00_first.ipynb"
    mine.write_text("mine")
    assert start.copy_lessons(lessons, copy) == []  # nothing new was given

    (lessons / "00_first.ipynb").write_text(notebook("print(5)"), encoding="utf-8")
    [line] = start.copy_lessons(lessons, copy)
    assert line == "00_first.ipynb: yours is kept; the new version is beside it as 00_first.new.ipynb"
    assert start.copy_lessons(lessons, copy) == []
    (lessons / "00_first.ipynb").write_text(notebook("print(6)"), encoding="utf-8")
    start.copy_lessons(lessons, copy)

    assert mine.read_text() == "mine"
    assert "print(5)" in (copy / "00_first.new.ipynb").read_text(encoding="utf-8")
    assert "print(6)" in (copy / "00_first.new2.ipynb").read_text(encoding="utf-8")


@pytest.mark.parametrize("manifest", [None, "not json", "[]"])
def test_without_a_manifest_every_file_counts_as_the_learners(lessons, copy, manifest):
    copy.mkdir()
    (copy / "00_first.ipynb").write_text("mine")
    if manifest is not None:
        (copy / start.MANIFEST).write_text(manifest)
    start.copy_lessons(lessons, copy)
    assert (copy / "00_first.ipynb").read_text() == "mine"
    assert (copy / "00_first.new.ipynb").exists()


def test_a_copy_that_is_already_new_needs_no_manifest(lessons, copy):
    start.copy_lessons(lessons, copy)
    (copy / start.MANIFEST).unlink()
    assert start.copy_lessons(lessons, copy) == []
    assert "00_first.new.ipynb" not in names(copy)


def test_a_deleted_copy_is_given_again(lessons, copy):
    start.copy_lessons(lessons, copy)
    (copy / "00_first.ipynb").unlink()
    start.copy_lessons(lessons, copy)
    assert (copy / "00_first.ipynb").exists()


def test_an_interrupted_write_leaves_the_old_lesson(lessons, copy, monkeypatch):
    start.copy_lessons(lessons, copy)
    before = (copy / "00_first.ipynb").read_bytes()
    (lessons / "00_first.ipynb").write_text(notebook("print(5)"), encoding="utf-8")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start.copy_lessons(lessons, copy)
    assert (copy / "00_first.ipynb").read_bytes() == before


def test_read_only_lessons_give_a_copy_that_can_be_written(lessons, copy):
    for path in lessons.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    start.copy_lessons(lessons, copy)
    assert all(path.stat().st_mode & 0o200 for path in copy.rglob("*"))


@pytest.mark.skipif(not hasattr(os, "setresuid") or os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_with_a_checkout_of_root_gets_a_copy_at_home(lessons, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, NOBODY, NOBODY)
    for folder in (tmp_path, *tmp_path.parents[:3]):  # pytest, and a worker of its, keep these for their owner
        if folder.stat().st_mode & 0o1000:  # /tmp itself, where all may be
            break
        folder.chmod(0o711)
    monkeypatch.setenv("HOME", str(home))
    os.setresuid(NOBODY, NOBODY, 0)
    try:
        folder = start.default_folder(lessons)
        start.copy_lessons(lessons, folder)
    finally:
        os.setresuid(0, 0, 0)
    assert folder == home / "dpviz-work"
    assert (folder / "00_first.ipynb").stat().st_uid == NOBODY


def test_the_copy_stands_beside_the_lessons_where_that_can_be_written(lessons):
    assert start.default_folder(lessons) == lessons.parent / "work"


def test_the_lessons_are_not_overwritten_by_their_own_copy(lessons):
    for folder in (lessons, lessons / "recorded"):
        with pytest.raises(ValueError, match="holds the lessons themselves. Name another folder"):
            start.copy_lessons(lessons, folder)


def test_a_folder_that_cannot_be_is_a_sentence(lessons, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file cannot hold the working copy \(File exists\). Name a folder"):
        start.copy_lessons(lessons, tmp_path / "file")


def test_the_repositorys_lessons_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert start.find_lessons() == Path(__file__).parents[1] / "lessons"


def test_installed_without_a_checkout_the_lessons_of_this_folder_are_taken(lessons, monkeypatch):
    monkeypatch.setattr(start, "__file__", str(lessons.parent / "site-packages" / "dpviz" / "start.py"))
    monkeypatch.chdir(lessons.parent)
    assert start.find_lessons() == lessons


def test_no_lessons_anywhere_is_a_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(start, "__file__", str(tmp_path / "site-packages" / "dpviz" / "start.py"))
    monkeypatch.chdir(tmp_path)
    assert start.main([]) == 2
    assert "They come with the repository and not with the installed package" in capsys.readouterr().err


def test_a_missing_jupyterlab_is_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(start.importlib.util, "find_spec", lambda name: None)
    assert start.main([]) == 1
    assert "python -m pip install -e '.[lab]'" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["0", "65536", "-1", "8888.0", "http", "", "²"])
def test_a_port_that_is_none_is_a_sentence(port, capsys):
    with pytest.raises(SystemExit, match="2"):
        start.main([f"--port={port}"])
    assert f"the port is {port!r}, but must be a whole number from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("user, expected", [(0, True), (1000, False)])
def test_only_root_is_allowed_root(user, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    words = start.command(tmp_path, first="00.ipynb", port=9, browser=True)
    assert ("--allow-root" in words) is expected
    assert "--ServerApp.ip=127.0.0.1" in words and "--no-browser" not in words


@pytest.mark.parametrize(
    "display, arguments, browser", [(":0", [], True), (":0", ["--no-browser"], False), ("", [], False)]
)
def test_a_browser_is_opened_only_where_it_can_be_seen(display, arguments, browser, lessons, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(start, "find_lessons", lambda: lessons)
    monkeypatch.setattr(start, "_become", lambda words: words)
    words = start.main([*arguments, str(lessons.parent / "elsewhere")])
    assert ("--no-browser" in words) is not browser
    assert ("Open the address that JupyterLab prints" in capsys.readouterr().out) is not browser
    assert "--LabApp.default_url=/lab/tree/00_first.ipynb" in words
    assert f"--ServerApp.root_dir={lessons.parent / 'elsewhere'}" in words


def test_jupyterlab_starts_at_the_first_lesson_and_listens_here_alone(tmp_path):
    """The real thing, from a checkout without a display; stopped as soon as it answers."""
    pytest.importorskip("jupyterlab")
    shutil.copytree(Path(start.__file__).parent, tmp_path / "dpviz", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "00_first.ipynb").write_text(notebook("print(1)"), encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "dpviz", "start", "--no-browser", "--port", str(port)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "JUPYTER_TOKEN": "known", "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = f"http://127.0.0.1:{port}/api/contents/00_first.ipynb?token=known"
        content = json.load(_answer(url, server))
        assert content["content"]["cells"][1]["outputs"] == []
        with pytest.raises(OSError):
            socket.create_connection((_other_address(), port), timeout=2).close()
    finally:
        server.terminate()
        printed, _ = server.communicate(timeout=30)
    assert f"http://127.0.0.1:{port}/lab/tree/00_first.ipynb" in printed


def _answer(url, server):
    deadline = time.monotonic() + 60
    while True:
        try:
            return urllib.request.urlopen(url, timeout=5)
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline, server.communicate(timeout=5)[0]
            time.sleep(0.2)


def _other_address():
    """Another address of this machine: 127.0.0.2 on Linux, where all of 127/8 is the loopback."""
    return "127.0.0.2" if sys.platform == "linux" else socket.gethostbyname(socket.gethostname())
