"""Figures drawn by a real Chromium as wide as panels get: no JupyterLab and no ranks, only the drawing."""

import json
import os

import browser
import pytest
from made_up_memory import all_stages, zero_run
from panel_page import PanelPage
from plotly.offline import get_plotlyjs

from dpviz.figures import zero_costs

WHY_NOT = browser.missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT) and not os.environ.get("CI"), reason=f"no browser test: {WHY_NOT}")

LEAST = 570  # px: panel.css lets a figure get no narrower, and scrolls it
PANEL = "<body style='margin:0'><div class='dpviz-panel'><i class='dpviz-status'></i><div id='plot'></div></div>"


@pytest.fixture(scope="module")
def page():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser.CHROMIUM, args=browser.CHROMIUM_OPTIONS)
        opened = chromium.new_page()
        opened.set_content(PANEL)
        opened.add_script_tag(content=get_plotlyjs())
        yield opened
        chromium.close()


def draw(page, figure, *, width):
    page.set_viewport_size({"width": width, "height": 600})
    page.evaluate("figure => Plotly.newPlot('plot', figure.data, figure.layout)", json.loads(figure.to_json()))
    return PanelPage(page, 0)


@pytest.mark.parametrize(
    ("module", "run"),
    [
        (zero_costs, zero_run(2)),
        (zero_costs, zero_run(3, k=8, N=71_114_000, K=4)),
        (zero_costs, all_stages(k=8, mixed_precision=True)),
        (zero_costs, all_stages(k=1)),
        (zero_costs.Scaled(params=405e9, memory_gb=192), all_stages(k=8, mixed_precision=True)),
    ],
    ids=["one stage", "long numbers", "all stages", "one rank", "a large model"],
)
@pytest.mark.parametrize("width", [LEAST, 650, 970])
def test_no_text_of_what_zero_costs_is_cut_off_or_covered(page, width, module, run):
    figure = module.make()
    module.draw(figure, run)
    panel = draw(page, figure, width=width)
    assert (panel.texts_cut_off(), panel.texts_overlapping()) == ([], [])
