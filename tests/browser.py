"""A real JupyterLab and a real Chromium for tests: run a notebook, move a panel's controls, read what is shown.

    with jupyterlab(folder) as lab, lab.open("lesson.ipynb") as notebook:
        assert notebook.run_all() == []
        notebook.panel(0).drag("ranks k", to=8)

Chromium is the system's (nothing is downloaded); playwright comes from the package index.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from panel_page import PLOT, PanelPage

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DARK, LIGHT = "JupyterLab Dark", "JupyterLab Light"


@functools.cache
def missing() -> str:
    """Why there can be no browser test here, or "" where there can."""
    if not CHROMIUM:
        return "no chromium was found; install it, for instance with apt-get install chromium"
    for needed in ("jupyterlab", "playwright"):
        if importlib.util.find_spec(needed) is None:
            return f"{needed} is not installed; pip install '.[lab,test]'"
    driver = subprocess.run([sys.executable, "-m", "playwright", "--version"], capture_output=True, text=True)
    if driver.returncode:  # it brings a Node.js that needs a library which Debian has only with a compiler
        said = driver.stderr.strip().rpartition("\n")[2]
        return f"playwright does not start ({said}); where libatomic is missing, apt-get install libatomic1"
    return ""


@dataclass(frozen=True)
class Lab:
    url: str
    token: str

    @contextlib.contextmanager
    def open(self, name: str, *, width: int = 1400, height: int = 1000, scale: float = 1) -> Iterator[Notebook]:
        """Open the notebook called `name` in a fresh browser, with `scale` dots a pixel."""
        from playwright.sync_api import sync_playwright

        with sync_playwright() as playwright:
            chromium = playwright.chromium.launch(executable_path=CHROMIUM, headless=True, args=CHROMIUM_OPTIONS)
            viewport = {"width": width, "height": height}
            page = chromium.new_context(viewport=viewport, device_scale_factor=scale).new_page()
            page.goto(f"{self.url}/lab/tree/{name}?reset&token={self.token}")
            notebook = Notebook(page)
            notebook.wait_until_ready()
            try:
                yield notebook
            finally:
                chromium.close()


@contextlib.contextmanager
def jupyterlab(folder: Path, *, theme: str = LIGHT) -> Iterator[Lab]:
    """Serve `folder` with a JupyterLab that has a home of its own; it and its kernels end with the context."""
    with tempfile.TemporaryDirectory(prefix="lab-") as home:
        _settings(Path(home), theme=theme)
        token, port = secrets.token_hex(8), _free_port()
        places = {
            "JUPYTER_CONFIG_DIR": "config",
            "JUPYTER_DATA_DIR": "data",
            "JUPYTER_RUNTIME_DIR": "runtime",
            "JUPYTERLAB_SETTINGS_DIR": "settings",
            "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        }
        environment = dict(os.environ, HOME=home, **{name: f"{home}/{place}" for name, place in places.items()})
        options = [
            "--no-browser",
            "--allow-root",
            "--ip=127.0.0.1",
            f"--port={port}",
            f"--IdentityProvider.token={token}",
            f"--ServerApp.root_dir={folder}",
            "--LabApp.expose_app_in_browser=True",
        ]
        with open(f"{home}/log", "w") as log:
            command = [sys.executable, "-m", "jupyterlab", *options]
            server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_for(f"http://127.0.0.1:{port}/api?token={token}", server, log.name)
                yield Lab(f"http://127.0.0.1:{port}", token)
            finally:
                server.send_signal(signal.SIGTERM)  # which ends its kernels too
                try:
                    server.wait(15)
                except subprocess.TimeoutExpired:
                    server.kill()
                    server.wait()


@contextlib.contextmanager
def running(cells: list[str], folder: Path) -> Iterator[Notebook]:
    """A notebook of these cells, written into `folder`, opened, and run without an error; its figures are drawn."""
    write(cells, folder / "notebook.ipynb")
    with jupyterlab(folder) as lab, lab.open("notebook.ipynb") as opened:
        assert opened.run_all() == []
        opened.wait_for_plots()
        opened.page.wait_for_timeout(1500)  # the last of the resizes that follow a first drawing
        yield opened


def write(cells: list[str], path: Path) -> None:
    """Write a notebook of code cells."""
    import nbformat.v4

    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    code = [nbformat.v4.new_code_cell(cell.strip()) for cell in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code, metadata=kernel), path)


def _settings(home: Path, *, theme: str) -> None:
    extension = home / "settings" / "@jupyterlab" / "apputils-extension"
    extension.mkdir(parents=True)
    (extension / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    pages = home / "config" / "labconfig"
    pages.mkdir(parents=True)  # no news that lie over the notebook
    news = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (pages / "page_config.json").write_text(json.dumps(news))


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _wait_for(url: str, server: subprocess.Popen, log: str, *, timeout: float = 60) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"JupyterLab ended:\n{Path(log).read_text()}")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(url, timeout=1).close()
            return
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not answer in {timeout} s:\n{Path(log).read_text()}")


class Notebook:
    """A notebook open in the browser; `page` is playwright's."""

    def __init__(self, page):
        self.page = page

    def wait_until_ready(self) -> None:
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        self.page.evaluate("""async () => {
            const lab = window.jupyterapp; await lab.restored;
            const notebook = lab.shell.currentWidget;
            await notebook.context.ready; await notebook.sessionContext.ready; }""")

    def run_all(self, *, timeout: float = 120) -> list[str]:
        """Run every cell and return the errors and what was written to stderr, also of cells far out of view."""
        self.command("notebook:run-all-cells")
        idle = "() => ![...document.querySelectorAll('.jp-InputPrompt')].some(prompt => prompt.innerText.includes('*'))"
        self.page.wait_for_function(idle, timeout=1000 * timeout)
        return self.page.evaluate(
            """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
              .flatMap(cell => cell.toJSON().outputs ?? [])
              .filter(out => out.output_type === 'error' || out.name === 'stderr')
              .map(out => out.evalue ?? [out.text].flat().join(''))"""
        )

    def scroll_to(self, cell: int) -> None:
        """Bring a cell into view: JupyterLab takes those far away out of the page, with their panels."""
        self.page.evaluate(
            """async cell => {
            const notebook = window.jupyterapp.shell.currentWidget.content;
            notebook.activeCellIndex = cell; await notebook.scrollToItem(cell, 'start'); }""",
            cell,
        )
        self.wait_for_plots()

    def command(self, name: str) -> None:
        self.page.evaluate("name => window.jupyterapp.commands.execute(name)", name)

    def save_and_reload(self, *, then_scroll_to: int | None = None) -> None:
        """Reload the page; an unsaved notebook would lose its widgets. Returns when a panel's plot is there again."""
        self.command("docmanager:save")
        time.sleep(0.5)
        self.page.reload()
        self.wait_until_ready()
        if then_scroll_to is not None:
            self.scroll_to(then_scroll_to)
        self.wait_for_plots()

    def wait_for_plots(self) -> None:
        self.page.wait_for_selector(PLOT, timeout=30_000)

    def ask(self, code: str) -> str:
        """What `code` prints in the notebook's kernel, run there at once (errors too)."""
        return self.page.evaluate(
            """async code => {
            const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel; let said = '';
            const run = kernel.requestExecute({ code, store_history: false });
            run.onIOPub = message => {
              if (message.header.msg_type === 'stream') said += message.content.text;
              if (message.header.msg_type === 'error') said += message.content.ename + ': ' + message.content.evalue; };
            await run.done; return said.trim(); }""",
            code,
        )

    def panel(self, number: int) -> PanelPage:
        return PanelPage(self.page, number)
