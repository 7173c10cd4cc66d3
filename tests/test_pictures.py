"""The README's pictures: each is of a panel that a lesson has, shown in the README, small, and can be made again."""

import ast
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from pictures import PICTURES, RIM, RULE, cells_of, small  # noqa: E402

MOST = 100_000  # bytes
LEAST_WIDE = 1350  # dots, 1.5 for each pixel of a panel


def test_the_readme_shows_every_picture_and_no_other():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]+\]\(docs/(\w+)\.png\)", readme)
    assert sorted(shown) == sorted(PICTURES) == sorted(path.stem for path in (ROOT / "docs").glob("*.png"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_and_sharp(name):
    path = ROOT / "docs" / f"{name}.png"
    with Image.open(path) as picture:
        assert path.stat().st_size < MOST and picture.width >= LEAST_WIDE


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_made_of_cells_that_its_lesson_has(name):
    cells = cells_of(PICTURES[name])
    assert "dp.panel(" in cells[-1]
    before = [line for source in cells[:-1] for line in ast.parse(source).body]
    done = [ast.unparse(line) for line in before if not isinstance(line, ast.FunctionDef | ast.ClassDef)]
    assert not re.search(r"\b(launch|predict|reveal)\(", "\n".join(done)), "only the panel runs anything"


def test_a_picture_of_few_colours_keeps_each_of_them():
    given = Image.new("RGB", (30, 20), "white")
    for x in range(30):
        for y in range(20 - RULE):
            given.putpixel((x, y), (x // 5 * 51, y // 6 * 51, 0))
    rim = 2 * RIM
    found = small(given).convert("RGB")
    assert found.size == (30 + rim, 20 - RULE + rim) and found.getpixel((0, 0)) == (255, 255, 255)
    inside = found.crop((RIM, RIM, 30 + RIM, 20 - RULE + RIM))
    assert inside.tobytes() == given.crop((0, 0, 30, 20 - RULE)).tobytes()
