"""The pictures of the README: panels of the lessons in a real JupyterLab and Chromium, with a control or two moved.

    make pictures                            all of them
    .venv/bin/python docs/pictures.py zero   one

Nothing is retyped: the cells come from the lessons, by their ids. A panel is photographed when its run is done.
"""

import ast
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from PIL import Image, ImageOps

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))

import browser  # noqa: E402
from panel_page import PanelPage  # noqa: E402

SCALE = 1.5  # dots a pixel: sharp on most screens, and still small
RIM, RULE = 14, 3  # dots: white round a panel, and the rule under it, which is JupyterLab's
PATIENCE = 60  # s for a run


@dataclass(frozen=True)
class Picture:
    """The cells of a lesson that make a panel, the panel's last, and what is moved before it is photographed."""

    lesson: str
    cells: tuple[str, ...]
    move: Callable[[PanelPage], None] = PanelPage.settle


def eight_ranks(panel: PanelPage) -> None:
    panel.drag("ranks k", to=8)
    panel.wait_for_verdict("8 ranks")


def four_ranks(panel: PanelPage) -> None:
    panel.drag("ranks k", to=4)
    panel.wait_for_verdict("1.50 S")


def stage_3(panel: PanelPage) -> None:
    """On 8 ranks in mixed precision, the textbooks' numbers, and so wide that gloo's headers hardly count."""
    for move in (
        lambda: panel.drag("ranks k", to=8),
        lambda: panel.drag("stage", to=3),
        lambda: panel.root.get_by_label("mixed precision").check(),
        lambda: panel.press("width", "ArrowRight"),
    ):
        move()
        panel.settle(timeout=PATIENCE)
    panel.wait_for_verdict("ZeRO-3: 12.5 %")


def wrong_tokens(panel: PanelPage) -> None:
    panel.select("fault", "token_weights_differ")
    panel.wait_for_verdict("token")


PICTURES = {
    "gradients": Picture("01_gradient_equivalence", ("all-reduce-gradients", "experiment", "panel"), eight_ranks),
    "ring": Picture("04_ring_all_reduce", ("reduce-scatter", "all-gather", "experiment", "panel"), four_ranks),
    "timeline": Picture("05_buckets_and_overlap", ("experiment", "panel")),
    "zero": Picture("08_zero", ("experiment", "panel"), stage_3),
    "mesh": Picture("10_hybrid_mesh", ("names", "loop", "reads", "average", "panel")),
    "contract": Picture("11_the_dp_contract", ("loop", "experiment", "panel"), wrong_tokens),
}


def cells_of(picture: Picture) -> list[str]:
    """The chosen cells, and of the others before the panel the imports."""
    lesson = nbformat.read(HERE.parent / "lessons" / f"{picture.lesson}.ipynb", as_version=4)
    code = {cell["id"]: cell["source"] for cell in lesson.cells if cell.cell_type == "code"}
    before = list(code)[: list(code).index(picture.cells[-1]) + 1]
    if missing := set(picture.cells) - set(before):
        raise ValueError(f"lesson {picture.lesson} has no cell {missing} up to {picture.cells[-1]}: correct PICTURES.")
    taken = [code[name] if name in picture.cells else imports(code[name]) for name in before]
    return [source for source in taken if source]


def imports(source: str) -> str:
    found = [line for line in ast.parse(source).body if isinstance(line, ast.Import | ast.ImportFrom)]
    return "\n".join(map(ast.unparse, found))


def photograph(picture: Picture, lab: browser.Lab, notebook: Path) -> Image.Image:
    """Make the notebook, run its cells and move the panel."""
    cells = cells_of(picture)
    browser.write(cells, notebook)
    with lab.open(notebook.name, scale=SCALE) as opened:
        if errors := opened.run_all():
            raise RuntimeError(f"lesson {picture.lesson}: {errors}")
        opened.scroll_to(len(cells) - 1)
        panel = opened.panel(0)
        panel.settle(timeout=PATIENCE)
        picture.move(panel)
        panel.settle(timeout=PATIENCE)
        opened.page.mouse.move(0, 0)  # nothing is hovered, nothing has the focus
        opened.page.evaluate("() => document.activeElement.blur()")
        image = notebook.with_suffix(".png")
        panel.screenshot(image)
        if said := panel.messages():
            raise RuntimeError(f"the panel of lesson {picture.lesson} says: {said}")
        print(f"docs/{image.name}, {panel.status()}: {panel.verdict()}", flush=True)
        opened.command("kernelmenu:shutdown")
    return Image.open(image).convert("RGB")


def small(picture: Image.Image) -> Image.Image:
    """The picture without the rule below, with a white rim, in a palette of 256 colours: half as many bytes."""
    above = picture.crop((0, 0, picture.width, picture.height - RULE))
    rimmed = ImageOps.expand(above, RIM, fill="white")
    return rimmed.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # rare colours too


def main(names: list[str]) -> None:
    if why := browser.missing():
        raise SystemExit(why)
    with tempfile.TemporaryDirectory() as folder, browser.jupyterlab(Path(folder)) as lab:
        for name in names or PICTURES:
            picture = photograph(PICTURES[name], lab, Path(folder, f"{name}.ipynb"))
            small(picture).save(HERE / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
