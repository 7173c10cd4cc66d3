"""The house keeps its order: imports point downwards, torch is imported only where it is needed, files stay small."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dpviz"
FILES = sorted(PACKAGE.rglob("*.py"))
LONGEST_FILE = 300

TORCH = {"torch"}
WIDGETS = {"ipywidgets", "anywidget", "IPython", "jupyterlab"}
OUTSIDE = {  # part of dpviz: what from outside it may not import, anywhere
    "wrong_value": TORCH | WIDGETS,
    "records": TORCH | WIDGETS,
    "contract": TORCH | WIDGETS,
    "theory": TORCH | WIDGETS,
    "questions": TORCH | WIDGETS,
    "figures": TORCH | WIDGETS,
    "panel": TORCH,
    "calculator": TORCH,
    "broken_run": TORCH,
    "predict": TORCH,
    "score": TORCH,
    "widgets": TORCH,
    "start": TORCH | WIDGETS,
    "labs": TORCH | WIDGETS,
    "planner": TORCH | WIDGETS,
    "parallel": WIDGETS,
    "experiments": WIDGETS,
    "measure": WIDGETS,
    "ranks": WIDGETS,
    "data": WIDGETS,
    "seeds": WIDGETS,
    "models": WIDGETS,
}
INSIDE = {  # part of dpviz: the other parts it may import
    "parallel": set(),
    "models": set(),
    "data": set(),
    "seeds": set(),
    "wrong_value": set(),
    "records": {"wrong_value"},
    "theory": set(),
    "contract": {"records", "wrong_value"},
    "questions": {"records", "theory", "contract", "wrong_value"},
    "measure": {"records", "theory"},
    "figures": {"records", "theory", "contract", "wrong_value"},
    "experiments": {"seeds", "parallel", "data", "models", "measure", "theory", "questions", "records"},
    "ranks": {"seeds", "measure", "records", "questions", "data", "contract"},  # the server loads data
    "checks": {"records"},
    "widgets": {"ranks", "figures", "questions", "records"},
    "predict": {"widgets", "records", "wrong_value"},
    "score": {"figures", "predict", "widgets", "wrong_value"},
    "panel": {"ranks", "records", "widgets", "questions", "figures"},
    "calculator": {"widgets"},
    "broken_run": {"contract", "figures", "questions", "ranks", "widgets", "wrong_value"},
    "start": set(),
    "labs": set(),
    "doctor": {"ranks", "measure", "records", "launch"},
    "planner": {"questions", "theory"},
}
FREE = {"__init__", "__main__"}  # these two name the others


def part_of(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path):
    """The dotted names that a file imports, those within functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            assert all(alias.name != "*" for alias in node.names), f"{path}: import names, not a star"


def names(path):
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", FILES, ids=names)
def test_the_arrows_point_downwards(path):
    part = part_of(path)
    if part in FREE:
        return
    assert part in INSIDE, f"{part} is new: say in INSIDE and OUTSIDE what it may import"
    for name in imports(path):
        outermost, *inner = name.split(".")
        assert outermost not in OUTSIDE.get(part, set()), f"{names(path)} imports {name}"
        if outermost == "dpviz":
            assert inner, f"{names(path)} imports all of dpviz: import from the module that holds what you need"
            assert inner[0] in INSIDE[part] | {part}, f"{names(path)} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=names)
def test_no_file_is_long(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE


def test_no_file_is_a_grab_bag():
    assert not [names(path) for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")]


@pytest.mark.parametrize("part", sorted(INSIDE))
def test_every_part_that_is_named_exists(part):
    assert (PACKAGE / f"{part}.py").exists() or (PACKAGE / part / "__init__.py").exists() or (PACKAGE / part).is_dir()


LIGHT = {
    "import dpviz": "import dpviz",
    "records": "import dpviz.records",
    "every question": "from dpviz import questions; [questions.config_class(name) for name in questions.QUESTIONS]",
    "every theory": "import pathlib, importlib, dpviz.theory as t\n"
    "for p in pathlib.Path(list(t.__path__)[0]).glob('[!_]*.py'): importlib.import_module(f'dpviz.theory.{p.stem}')",
    "list": "from dpviz.__main__ import main; main(['list'])",
    "help": "from dpviz.__main__ import main; main(['--help'])",
    "a wrong value": "from dpviz.__main__ import main; assert main(['run', 'equivalence', '--micro-batch', '0'])",
    "every figure": "import pathlib, importlib, dpviz.figures as f\n"
    "for p in pathlib.Path(list(f.__path__)[0]).glob('[!_]*.py'): importlib.import_module(f'dpviz.figures.{p.stem}')",
    "start": "import dpviz.start",
    "doctor": "import dpviz.doctor",
    "plan": "from dpviz.__main__ import main; main(['plan'])",
    "panel and predict": "import dpviz.panel, dpviz.predict, dpviz.calculator, dpviz.score",
}


@pytest.mark.parametrize("code", LIGHT.values(), ids=LIGHT)
def test_torch_is_not_imported_where_it_is_not_needed(code):
    heavy = ["torch"] + ([] if "panel" in code else ["ipywidgets"])
    check = f"{code}\nimport sys\nloaded = set({heavy}) & set(sys.modules)\nassert not loaded, loaded"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_each_commands_help_imports_no_torch():
    script = (
        "import sys; from dpviz.__main__ import main\ntry: main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
    )
    for command in ("list", "run", "plan", "start", "doctor"):
        code = script.format(command=command) + "assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert done.stdout.strip()


def test_a_function_is_not_hidden_by_the_module_it_comes_from():
    code = "import dpviz as dp, dpviz.predict, dpviz.calculator; from dpviz.panel import Panel; dp.Prediction\n"
    code += "assert callable(dp.panel) and callable(dp.predict) and dp.Panel is Panel and callable(dp.calculator)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_every_public_name_exists_and_no_other_one():
    code = "import dpviz as dp; [getattr(dp, name) for name in dp.__all__]\n"
    code += "try: dp.no_such_name; raise SystemExit(1)\nexcept AttributeError: pass"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
