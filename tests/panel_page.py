"""A panel as a learner has it: move its controls in the browser, read what it says and draws, measure how it looks."""

from __future__ import annotations

from pathlib import Path

PLOT = ".dpviz-panel .js-plotly-plot .main-svg"


class PanelPage:
    """The `number`-th panel of the page (panels hold a plot; predictions do not)."""

    def __init__(self, page, number: int):
        self.page = page
        self.root = page.locator(".dpviz-panel:has(.dpviz-status)").nth(number)

    def status(self) -> str:
        return self.root.locator(".dpviz-status").inner_text().strip()

    def verdict(self) -> str:
        return self.root.locator(".dpviz-verdict").inner_text().strip()

    def messages(self) -> str:
        return self.root.locator(".dpviz-messages").inner_text()

    def slider(self, label: str):
        return self.root.locator(f".widget-hslider:has(.widget-label:text-is('{label}'))")

    def value(self, label: str) -> float:
        return float(self.slider(label).locator(".widget-readout").inner_text())

    def drag(self, label: str, *, to: float, steps: int = 4, release: bool = True) -> None:
        """Drag a slider's handle to a value with the mouse, over `steps` positions on the way."""
        track, handle = self.slider(label).locator(".noUi-base"), self.slider(label).locator(".noUi-handle")
        handle.scroll_into_view_if_needed()
        low, high = (float(handle.get_attribute(name)) for name in ("aria-valuemin", "aria-valuemax"))
        rail, grip = track.bounding_box(), handle.bounding_box()
        y = grip["y"] + grip["height"] / 2
        self.page.mouse.move(grip["x"] + grip["width"] / 2, y)
        self.page.mouse.down()
        self.page.mouse.move(rail["x"] + rail["width"] * (to - low) / (high - low), y, steps=steps)
        if release:
            self.page.mouse.up()

    def press(self, label: str, key: str, times: int = 1) -> None:
        """Press a key on a slider's handle."""
        self.slider(label).locator(".noUi-handle").focus()
        for _ in range(times):
            self.page.keyboard.press(key)

    def select(self, label: str, option: str) -> None:
        self.root.locator(f".widget-dropdown:has(.widget-label:text-is('{label}')) select").select_option(option)

    def click(self, name: str) -> None:
        self.root.locator(f"button:has-text('{name}')").click(timeout=5000)

    def wait_for(self, mark: str, *, timeout: float = 15) -> None:
        """Wait until the status says `mark`: "✓", "✗", "■" or "running"."""
        self._wait("([panel, mark]) => panel.querySelector('.dpviz-status').innerText.includes(mark)", mark, timeout)

    def wait_for_verdict(self, words: str, *, timeout: float = 15) -> None:
        self._wait(
            "([panel, words]) => panel.querySelector('.dpviz-verdict').innerText.includes(words)", words, timeout
        )

    def wait_for_words(self, words: str, *, timeout: float = 15) -> None:
        """Wait until `words` stand anywhere in the panel."""
        self._wait("([panel, words]) => panel.innerText.includes(words)", words, timeout)

    def wait_for_message(self, words: str, *, timeout: float = 15) -> None:
        """Wait until the messages hold `words`, or are empty where `words` is."""
        held = "([panel, words]) => (text => words ? text.includes(words) : !text)"
        self._wait(f"{held}(panel.querySelector('.dpviz-messages').innerText.trim())", words, timeout)

    def settle(self, *, timeout: float = 15) -> None:
        """Wait until nothing runs: a moment for a request to be made, and another for the browser to draw."""
        self.page.wait_for_timeout(150)
        still = "([panel, _]) => !/running|^$/.test(panel.querySelector('.dpviz-status').innerText.trim())"
        self._wait(still, "", timeout)
        self.page.wait_for_timeout(200)

    def _wait(self, condition: str, argument: str, timeout: float) -> None:
        panel = self.root.element_handle()
        self.page.wait_for_function(condition, arg=[panel, argument], timeout=1000 * timeout)

    def drawn(self, trace: str, key: str = "x") -> list:
        """What the browser's plot holds for the trace of that name."""
        return self.root.evaluate(
            """(panel, [name, key]) => {
            const trace = panel.querySelector('.js-plotly-plot').data.find(one => one.name === name);
            return Array.from(trace[key]); }""",
            [trace, key],
        )

    def watch(self) -> None:
        """From the next release of the mouse on, note when "running" is said, a picture drawn and the run done."""
        self.root.evaluate("""panel => {
            const plot = panel.querySelector('.js-plotly-plot'), status = panel.querySelector('.dpviz-status');
            panel.times = {};
            if (!panel.watched) {
              panel.watched = true;
              plot.on('plotly_afterplot', () => { panel.times.picture ??= performance.now(); });
              new MutationObserver(() => {
                if (status.innerText.includes('running')) panel.times.running ??= performance.now();
                if (status.innerText.includes('✓')) panel.times.done ??= performance.now();
              }).observe(status, { childList: true, subtree: true, characterData: true });
            }
            const start = () => { panel.times = { released: performance.now() }; };
            document.addEventListener('mouseup', start, { once: true, capture: true }); }""")

    def stop(self, *, timeout: float = 10) -> float:
        """Click Stop; return the seconds, in the page's own clock, until the panel says that it has stopped."""
        self.root.evaluate("""panel => {
            const status = panel.querySelector('.dpviz-status');
            panel.stopped = {};
            document.addEventListener('mouseup', () => { panel.stopped.from = performance.now(); },
                                      { once: true, capture: true });
            const seen = new MutationObserver(() => {
              if (!status.innerText.includes('■')) return;
              panel.stopped.to ??= performance.now();
              seen.disconnect();
            });
            seen.observe(status, { childList: true, subtree: true, characterData: true }); }""")
        self.click("Stop")
        self._wait("([panel, _]) => panel.stopped.to", "", timeout)
        return self.root.evaluate("panel => (panel.stopped.to - panel.stopped.from) / 1000")

    def seconds(self, *, timeout: float = 10) -> dict[str, float]:
        """Seconds from the release of the mouse to "running", "picture" and "done"; call `watch` before."""
        self._wait("([panel, _]) => panel.times.done && panel.times.picture", "", timeout)
        times = self.root.evaluate("panel => panel.times")
        return {name: (at - times["released"]) / 1000 for name, at in times.items() if name != "released"}

    def screenshot(self, path: Path) -> None:
        self.root.scroll_into_view_if_needed()
        self.page.wait_for_timeout(200)
        self.root.screenshot(path=str(path))

    def texts_cut_off(self) -> list[str]:
        """The texts of the figure that reach out of it."""
        return self.root.evaluate("""panel => {
            const plot = panel.querySelector('.js-plotly-plot'), frame = plot.getBoundingClientRect();
            const out = box => box.left < frame.left - 1 || box.right > frame.right + 1
                            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
            return [...plot.querySelectorAll('text')].filter(text => {
              const box = text.getBoundingClientRect();
              return box.width && out(box); }).map(text => text.textContent); }""")

    def texts_overlapping(self) -> list[list[str]]:
        """Pairs of ticks, titles, captions and keys of the figure that cover each other."""
        return self.root.evaluate("""panel => {
            const kinds = ['[class*="title"] text', 'text[class*="title"]', '[class*="tick"] text', '.annotation-text',
                           '.legendtext'];
            const boxes = [...panel.querySelectorAll(kinds.join())]
              .map(text => [text.textContent, text.getBoundingClientRect()]).filter(([, box]) => box.width);
            const shared = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
            return boxes.flatMap(([one, a], i) => boxes.slice(i + 1)
              .filter(([, b]) => shared(a, b, 'left', 'right') > 2 && shared(a, b, 'top', 'bottom') > 4)
              .map(([other]) => [one, other])); }""")

    def contrasts(self) -> dict[str, float]:
        """The contrast ratio between each kind of text around the figure and what lies behind it."""
        return self.root.evaluate("""panel => {
            const kinds = ['.dpviz-verdict', '.dpviz-verdict b', '.dpviz-status', '.dpviz-mark', '.dpviz-foot',
                           '.widget-label', '.widget-readout'];
            const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
            const over = ([r, g, b, a = 1], under) => [r, g, b].map((v, i) => a * v + (1 - a) * under[i]);
            const linear = v => v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4;
            const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
            const behind = element => {
              for (; element; element = element.parentElement) {
                const colour = numbers(getComputedStyle(element).backgroundColor);
                if (colour.length === 3 || colour[3] > 0) return colour;
              }
              return [255, 255, 255];
            };
            return Object.fromEntries(kinds.map(kind => {
              const element = panel.querySelector(kind), back = behind(element);
              const front = over(numbers(getComputedStyle(element).color), back);
              const [low, high] = [light(front), light(back)].sort((a, b) => a - b);
              return [kind, (high + 0.05) / (low + 0.05)]; })); }""")
