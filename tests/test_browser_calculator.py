"""A calculator in a real JupyterLab and a real Chromium: its figure follows a slider while it is being dragged."""

import browser
import pytest

pytestmark = pytest.mark.thorough

CELLS = [
    """
import dpviz as dp
from dpviz.figures import plan
from dpviz.planner import PRESETS, Config
""",
    """
planner = dp.calculator(
    Config.plan, Config(), figure=plan, presets={"params": PRESETS},
    controls={"params": (1e9, 3e9, 7e9, 13e9, 30e9, 70e9, 405e9, 1e12, 5e12), "memory_gb": (16, 192),
              "world_size": (1, 2, 4, 8, 16, 32, 64, 256, 1024), "activations_gb": (0, 100),
              "accumulation_steps": (1, 32), "link_gbps": (1, 10, 25, 100, 200, 400, 800, 3200)})
planner
""",
]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with browser.running(CELLS, tmp_path_factory.mktemp("calculator")) as opened:
        yield opened


def test_the_figure_follows_a_slider_that_is_still_held(notebook, tmp_path):
    planner = notebook.panel(0)
    assert planner.verdict() == "Take ZeRO-1: 38.5 GB of 80 GB, 24.5 GB sent a step."
    planner.drag("activations, GB", to=60, release=False)
    planner.wait_for_verdict("Take ZeRO-3")
    assert planner.drawn("activations and headroom", "y")[0] > 50e9
    notebook.page.mouse.up()
    planner.screenshot(tmp_path / "calculator.png")
    print(f"see {tmp_path / 'calculator.png'}")
    assert planner.texts_cut_off() == [] and planner.texts_overlapping() == []


def test_a_preset_moves_its_slider_and_nothing_jumps(notebook):
    planner = notebook.panel(0)
    high = planner.root.bounding_box()["height"]
    planner.select("model", "13B")
    planner.wait_for_verdict("even ZeRO-3 would take 8")
    planner.select("model", "5T")
    planner.wait_for_verdict("Nothing fits")
    assert planner.root.bounding_box()["height"] - high <= 0
    assert planner.texts_cut_off() == [] and planner.texts_overlapping() == []


def test_it_is_as_it_was_after_a_reload(notebook):
    notebook.save_and_reload()
    notebook.panel(0).wait_for_verdict("Nothing fits")
    assert notebook.panel(0).drawn("model state", "y")[0] == 80e12
