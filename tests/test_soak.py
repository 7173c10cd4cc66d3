"""The long forms of test_reliability.py and test_browser_panel.py, in CI: many launches, many moves."""

import random
import sys

import browser
import pytest
from faults import RIGHT
from interpreter import Interpreter
from test_browser_panel import CELLS, agrees

pytestmark = [
    pytest.mark.quiet,
    pytest.mark.thorough,
]

SEED = 20
LAUNCHES, MOVES = 1000, 200
MORE_MB = {"caller": 15, "server": 5, "rank": 5}  # over nine tenths of the launches


@pytest.mark.skipif(sys.platform != "linux", reason="counts by /proc")
def test_a_thousand_launches_with_faults_among_them(tmp_path):
    with Interpreter(tmp_path) as python:
        assert python.do("settle")[2]["results"] == RIGHT
        told = python.do("soak", seed=SEED, launches=LAUNCHES)
        print(told["count"], told["memory_mb"])
        assert told["wrong"] == []
        early, late = told["memory_mb"]
        grown = {who: late[who] - early[who] for who in MORE_MB}
        assert all(grown[who] < MORE_MB[who] for who in MORE_MB), f"MB more: {grown}"
        python.do("launch", fault="a_rank_raises")
        assert python.do("launch")["results"] == RIGHT
        more = [sentence for sentence in python.do("grown") if "'net'" not in sentence]  # eight slots, where four were
        assert more == []
        python.look()
        assert python.end() == 0
        assert python.left_after(5) == []


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    with browser.running(CELLS, tmp_path_factory.mktemp("soak")) as opened:
        yield opened


def move(draw, fast, slow):
    """One move as a hand makes it: a drag, keys, another choice, or Stop, sooner or later in a run of seconds."""
    what = draw.random()
    if what < 0.45:
        label, high = draw.choice([("ranks k", 8), ("accumulation steps K", 24)])
        fast.drag(label, to=draw.randint(1, high), steps=3)
    elif what < 0.75:
        fast.press(draw.choice(["ranks k", "accumulation steps K"]), draw.choice(["ArrowLeft", "ArrowRight"]), times=3)
    elif what < 0.8:
        fast.select("norm", draw.choice(["none", "batch"]))
    elif what < 0.9:
        slow.drag("steps", to=draw.randint(1, 50), steps=3)
    else:
        slow.drag("steps", to=draw.randint(40, 50), steps=3)
        # by the page, not by the mouse: a run that ends meanwhile disables the button, which then ignores it
        slow.page.wait_for_timeout(draw.randint(0, 800))
        slow.root.locator("button:has-text('Stop')").evaluate("button => button.click()")


def test_two_hundred_moves_in_a_browser(notebook):
    draw, fast, slow, stopped = random.Random(SEED), notebook.panel(0), notebook.panel(1), 0
    for number in range(1, MOVES + 1):
        move(draw, fast, slow)
        stopped += "■" in slow.status()
        if number % 80 == 0:
            notebook.save_and_reload()
        if number % 20 == 0:
            fast.settle()
            agrees(notebook, fast, "fast")
    assert stopped
    fast.drag("ranks k", to=5)
    fast.drag("accumulation steps K", to=9)
    slow.drag("steps", to=7)
    slow.wait_for_verdict("after 7 updates", timeout=30)
    fast.settle()
    for panel, name in ((fast, "fast"), (slow, "slow")):
        agrees(notebook, panel, name)
    ran = notebook.ask("print(len(fast.run.results), fast.run.config['accumulation_steps'], slow.run.config['steps'])")
    assert ran == "5 9 7"
    assert len(slow.drawn("spread")) == 7
    assert "5 ranks × 9 micro-batches" in fast.verdict()
