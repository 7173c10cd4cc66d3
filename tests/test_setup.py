"""Installing: the files that list dependencies agree, and the Makefile says what is wrong instead of failing in pip."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import browser
import pytest
import yaml

from dpviz.questions import QUESTIONS

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text(encoding="utf-8") if (ROOT / "README.md").exists() else ""
MAKE = shutil.which("make")
CONDA_NAMES = {"torch": "pytorch-cpu"}  # PyPI's name, where conda-forge's is another
PIP_IN_CONDA = {"playwright"}  # not on conda-forge under that name


def requirements():
    """{name: specifier} of everything that pyproject.toml asks for, extras included but the peers of the benchmarks."""
    extras = [lines for name, lines in PROJECT["optional-dependencies"].items() if name != "bench"]
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return dict(split(line) for line in lines)


def split(line):
    name, specifier = re.fullmatch(r"([A-Za-z0-9_.-]+?)\s*([<>=!~].*)?", line).groups()
    return canonical(name), (specifier or "").replace(" ", "")


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return dict(line.split("==") for line in lines)


def environment():
    return yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


def test_the_conda_environment_is_the_projects():
    from_conda = dict(split(line) for line in environment() if isinstance(line, str))
    [from_pip] = [line["pip"] for line in environment() if isinstance(line, dict)]
    assert from_pip[-1] == "-e ."
    from_pip = dict(split(line) for line in from_pip[:-1])
    assert from_conda.pop("python") == PROJECT["requires-python"] and from_conda.pop("pip") == ""
    expected = requirements()
    assert from_pip == {name: expected[name] for name in PIP_IN_CONDA}
    assert from_conda == {CONDA_NAMES.get(n, n): v for n, v in expected.items() if n not in PIP_IN_CONDA}


def test_each_line_of_the_conda_environment_says_which_lesson_needs_it():
    numbers = {path.name[:2] for path in (ROOT / "lessons").glob("*.ipynb")}
    lines = (ROOT / "environment.yml").read_text().split("dependencies:\n")[1].splitlines()
    for line in lines:
        if line.strip() not in ("- python >=3.11", "- pip", "- pip:", "- -e ."):
            reason = re.search(r"# (every lesson|no lesson|\d\d(?:, \d\d)*): \w", line)
            assert reason, line
            assert set(re.findall(r"\d\d", reason[1])) <= numbers, f"{line}: there is no such lesson"


def test_constraints_pin_every_dependency_once_and_name_no_place():
    text = (ROOT / "constraints.txt").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line) for line in lines)
    names = [canonical(name) for name in constraints()]
    assert len(names) == len(set(names)) == len(lines)
    assert requirements().keys() <= set(names)
    assert lines == sorted(lines, key=str.lower)


def test_the_tested_versions_satisfy_the_project():
    packaging = pytest.importorskip("packaging.specifiers")
    tested = {canonical(name): version for name, version in constraints().items()}
    for name, specifier in requirements().items():
        assert packaging.SpecifierSet(specifier).contains(tested[name]), name


def test_the_texts_are_part_of_the_package():
    from importlib.resources import files

    assert files("dpviz").joinpath("texts/founding.txt").is_file()
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["dpviz"]
    package = ROOT / "dpviz"
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    code = {path for path in package.rglob("*.py")}
    others = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts} - code
    assert others == shipped


def test_the_repository_speaks_of_no_private_place():
    for name in ("pyproject.toml", "constraints.txt", "environment.yml", "Makefile", "README.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"/opt/|/tmp/|/home/|/root/|file://", text), name


@pytest.fixture
def checkout(tmp_path):
    """A folder with what the Makefile needs, and a place for Pythons that pretend."""
    if MAKE is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def pretender(folder, *, before):
    """A Python that runs `before` ahead of each `-c`, and records any other use in pretender.log."""
    code = f"import sys\n{before}\nexec(sys.argv[1])"
    script = folder / "pretender"
    script.write_text(
        f"""#!/bin/sh
if [ "$1" = -c ]; then exec "{sys.executable}" -c '{code}' "$2"; fi
echo "$@" >> "{folder}/pretender.log"
"""
    )
    script.chmod(0o755)
    return script


def make(folder, *arguments):
    # Without what an outer make hands down: its flags, and the variables of its command line.
    outer = {"MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "ARGS", "CPU", "PY", "LESSONS"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    done = subprocess.run([MAKE, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_an_old_python_is_a_sentence(checkout):
    python = pretender(checkout, before='sys.version_info, sys.version = (3, 9, 2), "3.9.2 (main)"')
    status, printed = make(checkout, "lab", f"PY={python}")
    assert status != 0 and f"dpviz needs Python 3.11 or newer, but {python} is 3.9.2." in printed
    assert "make PY=python3.12" in printed and not (checkout / ".venv").exists()


def test_a_python_without_ensurepip_is_a_sentence(checkout):
    python = pretender(checkout, before='sys.modules["ensurepip"] = None')
    status, printed = make(checkout, "test", f"PY={python}")
    assert status != 0 and "sudo apt-get install python3-venv" in printed
    assert "Traceback" not in printed and not (checkout / ".venv").exists()


def test_no_python_at_all_is_a_sentence(checkout):
    status, printed = make(checkout, "lab", "PY=python3.99")
    assert status != 0 and "python3.99 was not found. dpviz needs Python 3.11 or newer" in printed


def test_a_good_python_makes_the_environment(checkout):
    python = pretender(checkout, before="")
    make(checkout, ".venv/ready", f"PY={python}")  # it stops at the pip of an environment that was not made
    assert (checkout / "pretender.log").read_text() == "-m venv .venv\n"


def test_an_environment_that_is_there_needs_no_ensurepip(checkout):
    python = pretender(checkout, before='sys.modules["ensurepip"] = None')
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\necho "$@" >> installed.log\n')
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    status, printed = make(checkout, "lab", f"PY={python}", "ARGS=--no-browser --port 9000")
    assert status == 0, printed
    assert not (checkout / "pretender.log").exists()
    install, start = (checkout / "installed.log").read_text().splitlines()
    assert install.endswith("-c constraints.txt -e .[lab,test]") and "extra-index-url" not in install
    assert start == "-m dpviz start --no-browser --port 9000"

    assert make(checkout, "lab", f"PY={python}")[0] == 0
    assert (checkout / "installed.log").read_text().splitlines()[2:] == ["-m dpviz start"]  # installed once


def test_the_cpu_build_of_torch_is_an_option(checkout):
    status, printed = make(checkout, "-n", ".venv/ready", "CPU=1", f"PY={sys.executable}")
    assert status == 0 and "--extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt" in printed


def test_make_alone_prints_what_it_can_do(checkout):
    status, printed = make(checkout)
    targets = set(re.findall(r"^make (\w+)", printed, re.MULTILINE))
    assert status == 0 and targets == {"lab", "test", "lessons", "lint", "bench", "pictures"}
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    assert targets | {"help"} == set(phony.split())


def test_the_readme_names_every_experiment():
    told = re.search(r"^The experiments: (.*?)\.$", README, re.MULTILINE | re.DOTALL)[1]
    assert set(re.findall(r"`(\w+)`", told)) == set(QUESTIONS)


def test_the_commands_of_the_readme_exist():
    block = "\n".join(re.findall(r"```(?:sh|console|powershell)?\n(.*?)```", README, re.DOTALL))
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    targets = re.findall(r"\bmake (\w+)", block)
    assert {"lab", "test"} <= set(targets) <= set(phony)
    commands = set(re.findall(r"python -m dpviz (\w+)", README))
    assert {"start", "doctor", "list", "run"} <= commands
    listed = subprocess.run(
        [sys.executable, "-m", "dpviz", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(re.search(rf"\b{command}\b", listed.stdout) for command in commands)
    files = re.findall(r"`((?:[\w.-]+/)*[\w-]+\.(?:md|txt|yml|toml|ipynb|py|png))`|\]\(([^):]+)\)", README)
    headings = re.findall(r"^#+ (.*)$", README, re.MULTILINE)
    anchors = {"#" + re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    for name in (one or two for one, two in files):
        assert name in anchors or (ROOT / name).exists(), f"README.md names {name}"


def test_the_readmes_experiments_run_as_written():
    """Every `python -m dpviz run` line is parsed by the Config it names; tests of the experiments run them."""
    from dpviz import questions
    from dpviz.__main__ import RUN_OPTIONS
    from dpviz.questions.base import parse

    lines = re.findall(r"python -m dpviz run (\w+) (.*)", README)
    assert lines
    for name, options in lines:
        pairs = dict(re.findall(r"--([\w-]+) ([^\s-]\S*)", options))
        fields = {key.replace("-", "_"): value for key, value in pairs.items()}
        for not_a_field in RUN_OPTIONS:
            fields.pop(not_a_field, None)
        parse(questions.config_class(name), fields)


def test_ci_runs_the_readmes_test_command():
    script = ROOT / ".ci" / "run"
    assert script.read_text().splitlines()[-1] == "make test" and os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], timeout=10).returncode == 0


def test_a_playwright_that_does_not_start_is_a_sentence(monkeypatch):
    """Its Node.js needs a library that a bare Debian lacks."""
    said = "node: error while loading shared libraries: libatomic.so.1: cannot open shared object file"
    done = subprocess.CompletedProcess([], 127, "", f"a warning\n{said}\n")
    monkeypatch.setattr(browser, "CHROMIUM", "/usr/bin/chromium")
    monkeypatch.setattr(browser.subprocess, "run", lambda *words, **options: done)
    assert said in browser.missing.__wrapped__() and "apt-get install libatomic1" in browser.missing.__wrapped__()
