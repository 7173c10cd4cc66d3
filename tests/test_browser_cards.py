"""A card in a real JupyterLab and a real Chromium: a guess, the evidence, another guess, and only then the verdict."""

import browser
import pytest

pytestmark = pytest.mark.thorough

CELLS = [
    """
import dpviz as dp
from dpviz.figures.cards import Evidence
board = dp.scoreboard("Two cards")
card = board.predict("1", "The larger the batch, the more traffic.", ["true, B times", "false, the same"])
card
""",
    """
same = {"B = 1": 1.5, "B = 16": 1.5}
card.reveal(card.options[1], evidence=Evidence(measured=same, unit="P sent"))
""",
    "board",
]


def run(notebook, cell):
    """Run one cell, wherever a click has put the selection."""
    notebook.page.evaluate("cell => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = cell; }", cell)
    notebook.command("notebook:run-cell")


def test_a_guess_may_be_revised_beside_the_evidence(tmp_path):
    browser.write(CELLS, tmp_path / "cards.ipynb")
    with browser.jupyterlab(tmp_path) as lab, lab.open("cards.ipynb") as notebook:
        page = notebook.page
        run(notebook, 0)
        page.get_by_label("true, B times").check()
        run(notebook, 1)
        page.wait_for_selector(".js-plotly-plot")
        run(notebook, 2)
        table = page.locator(".dpviz-score")
        table.wait_for()
        assert page.get_by_text("You expected: true, B times.").is_visible()
        assert page.get_by_text("Measured: false").count() == 0 and "point" not in table.inner_text()

        page.get_by_label("false, the same").last.check()
        page.get_by_text("Show the verdict").click()
        page.get_by_text("The evidence changed your mind.").wait_for()
        assert page.get_by_text("Show the verdict").is_hidden()
        assert "½ point" in table.inner_text() and "1.5, 1.5 P sent" in table.inner_text()
        page.screenshot(path=tmp_path / "cards.png")
        print(f"see {tmp_path / 'cards.png'}")
        assert notebook.ask("print(board.so_far(), card.first, card.second)") == (
            "½ of 1 point true, B times false, the same"
        )
