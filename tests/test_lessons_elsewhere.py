"""The lessons whose figures show links and bytes also run where there are neither links nor the kernel's counters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LESSONS = Path(__file__).parents[1] / "lessons"


@pytest.mark.thorough
@pytest.mark.parametrize("number", ["04", "05", "08", "09", "12", "13"])
def test_a_lesson_runs_without_links_and_counts_its_bytes(number):
    """Its facts are the same: what is stored was made with both."""
    [lesson] = LESSONS.glob(f"{number}_*.ipynb")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env", "-p", "no:cacheprovider", str(lesson)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=LESSONS.parent,
        env={**os.environ, "DPVIZ_LINK": "none", "DPVIZ_WIRE": "counted"},
    )
    assert done.returncode == 0, done.stdout[-4000:]
