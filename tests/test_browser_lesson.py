"""Lesson 01 as a learner meets it: opened in JupyterLab, run from top to bottom, a slider moved, the page reloaded."""

import json
import shutil
from pathlib import Path

import browser
import pytest

LESSON = Path(__file__).parents[1] / "lessons" / "01_gradient_equivalence.ipynb"

pytestmark = pytest.mark.thorough


def panel_cell() -> int:
    cells = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
    return next(number for number, cell in enumerate(cells) if "dp.panel(" in "".join(cell["source"]))


def test_lesson_01_runs_its_panel_moves_and_a_reload_agrees(tmp_path):
    shutil.copy(LESSON, tmp_path)
    with browser.jupyterlab(tmp_path) as lab, lab.open(LESSON.name) as notebook:
        assert notebook.run_all() == []
        notebook.scroll_to(panel_cell())
        panel = notebook.panel(0)
        panel.settle()
        assert panel.verdict().startswith("Equal:") and "4 ranks" in panel.verdict()
        four = panel.drawn("labels", "text")

        panel.drag("ranks k", to=8)
        panel.wait_for_verdict("8 ranks")
        panel.settle()
        assert panel.verdict().startswith("Equal:")
        assert len(four) == 4 and len(panel.drawn("labels", "text")) == 8
        sent = panel.drawn("sent", "y")
        assert len(sent) == 8 and min(sent) > 0
        assert panel.messages() == ""

        notebook.save_and_reload(then_scroll_to=panel_cell())
        panel = notebook.panel(0)
        panel.settle()
        assert "8 ranks" in panel.verdict() and panel.value("ranks k") == 8
        assert panel.drawn("sent", "y") == sent
        assert len(panel.drawn("labels", "text")) == 8
        panel.drag("ranks k", to=3)
        panel.wait_for_verdict("3 ranks")
