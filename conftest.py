"""How pytest runs: what is left to CI, and the lessons, of which nbval executes every notebook and compares each cell
with the output stored in it.
"""

import os
import signal
import sys

import pytest

PLOTLY = "application/vnd.plotly.v1+json"


# Their predictions are decided by seconds: they have the machine to themselves, as the tests marked quiet do
QUIET_LESSONS = ("04_", "05_", "09_", "12_")


def pytest_configure():
    # A shell has Ctrl-C ignored in what it starts in the background, and whatever tests start would inherit that
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker("thorough") and not os.environ.get("CI"):
            item.add_marker(pytest.mark.skip(reason="more of the same, in .ci/run or CI=1 make test"))
        if hasattr(item, "cell"):
            if item.path.name.startswith(QUIET_LESSONS):
                item.add_marker(pytest.mark.quiet)
            # nbval waits five seconds for a cell's output; the first ranks of a busy machine take longer.
            item.output_timeout = 60
            # A figure's JSON holds plotly's template and every digit of every float: its text is compared instead.
            if PLOTLY not in item.parent.skip_compare:
                item.parent.skip_compare = (*item.parent.skip_compare, PLOTLY)


def pytest_collection_finish():
    # Beside other tests and their ranks, threads of torch's own would only wait for a core, and spin as they do
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
