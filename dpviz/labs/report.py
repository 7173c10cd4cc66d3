"""A plugin of pytest that writes down how each cell of a notebook went, as it goes: one JSON object a line.

    pytest -p dpviz.labs.report --nbval-lax lab.ipynb     with DPVIZ_LAB_REPORT naming the file

A notebook that is stopped from outside has then told all that came before.
"""

import json
import os
import re

import pytest

from dpviz.labs import marking

COLOURS = re.compile(r"\x1b\[[0-9;]*m")
MOST = 300  # characters of an error


def pytest_collection_modifyitems(items):
    for item in items:
        if hasattr(item, "cell"):
            item.output_timeout = 60  # nbval's five seconds are too few for the first ranks of a busy machine


@pytest.hookimpl(trylast=True)  # once the kernel runs, and not for a cell that nbval leaves out
def pytest_runtest_setup(item):
    _write(item, {})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        why = "" if report.passed else _why(call.excinfo)
        _write(item, {"passed": report.passed, "why": why})
        if marking.LATE.match(why):
            item.session.shouldstop = "a cell took too long"  # its exercise's other checks would take as long each
    return report


def _write(item, told):
    if hasattr(item, "cell"):
        with open(os.environ["DPVIZ_LAB_REPORT"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"cell": item.cell.get("id", ""), **told}) + "\n")


def _why(excinfo):
    """Return the error's own line: the last one of the cell's traceback that names an error."""
    error = excinfo.value
    text = COLOURS.sub("", str(getattr(error, "inner_traceback", "") or error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt|Exit|Stopped)\b", line)]
    return (named or lines or ["it failed"])[-1][:MOST]
