"""From a released slider to the new picture, in a real JupyterLab and a real Chromium: what a learner waits for."""

import sys
import tempfile
from pathlib import Path

from report import markdown, number, spread

RANKS = (2, 4, 8)
MOVES = (6, 2, 5, 1, 6, 3, 5)  # values of the slider K; none is the one before it
CELL = """
import dpviz as dp
from dpviz.experiments import equivalence
from dpviz.figures import equivalence as figure
dp.panel(equivalence.experiment, equivalence.Config(), figure=figure,
         controls={"world_size": (1, 8), "accumulation_steps": (1, 24)})
"""


def measure(rounds, report):
    """Return a row a k: k, moves, the spread of running_s (until the panel says that it runs), picture_s and done_s,
    all from the release of the mouse, on the page's own clock.
    """
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
    import browser  # what drives JupyterLab and Chromium belongs to the tests

    if why_not := browser.missing():
        report.leave_out("slider", f"no picture can be waited for: {why_not}")
        return []
    seen = {k: [] for k in RANKS}
    with tempfile.TemporaryDirectory() as folder:
        with browser.running([CELL], Path(folder)) as notebook:
            panel = notebook.panel(0)
            for turn in range(rounds):
                for k in RANKS:
                    panel.drag("ranks k", to=k)
                    panel.settle()
                    seen[k] += [_moved(panel, to) for to in MOVES]
                    median = spread([one["picture"] for one in seen[k]])["median"]
                    report.progress(f"slider: k = {k}, turn {turn + 1}: a picture after {1000 * median:.0f} ms")
    return [
        {"k": k, "moves": len(some), **{f"{mark}_s": spread([one[mark] for one in some]) for mark in some[0]}}
        for k, some in seen.items()
    ]


def table(rows):
    head = ["k, ranks", "new picture (ms)", "slowest (ms)", "moves"]
    times = [(row, 1000 * row["picture_s"]["median"], 1000 * row["picture_s"]["max"]) for row in rows]
    return markdown(head, [[str(r["k"]), number(one, 0), number(most, 0), str(r["moves"])] for r, one, most in times])


def _moved(panel, to):
    panel.watch()
    panel.drag("accumulation steps K", to=to)
    return panel.seconds()
