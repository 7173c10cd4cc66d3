"""A plotly FigureWidget that is made once, changed from the kernel, and right again after the page is reloaded.

The kernel's figure is the only truth: `draw` changes it, and nothing that a browser reports back does. Private parts of
plotly's widget are used (its synchronised copies, its update message, its code), so plotly's major version is pinned.
"""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Iterator
from pathlib import Path

import anywidget
import ipywidgets as w
import plotly.graph_objects as go
import traitlets

NEEDLESS = ["sendDataToCloud", "select2d", "lasso2d", "autoScale2d"]


class Presence(anywidget.AnyWidget):
    """Lies in a panel and tells the kernel that a page shows it: what was sent while the page was loading is lost.

    It also tells plotly whenever its width changes, since plotly draws 700 px wide in a cell that is not laid out yet.
    """

    _esm = Path(__file__).with_name("presence.js")


class PlotlyCode(w.Widget):
    """Carries the code of plotly's widget to the browser, once for all figures of a kernel."""

    source = traitlets.Unicode().tag(sync=True)


@functools.cache
def _plotly_code() -> PlotlyCode:
    return PlotlyCode(source=str(go.FigureWidget._esm))


class LiveFigure(go.FigureWidget):
    """A FigureWidget of `figure`. Change it within `with live.changing():`; `resend()` when a page says it is here."""

    _esm = Path(__file__).with_name("figure.js")
    _code = traitlets.Unicode().tag(sync=True)  # the id of the model that carries plotly's code

    def __init__(self, figure: go.Figure):
        super().__init__(figure)
        self._code = _plotly_code().model_id
        self._one_at_a_time = threading.RLock()
        self._first = self._leaves()
        self._ever_changed: set[tuple[str, str]] = set()  # of a trace or the layout, and the property
        self._config = {
            **self._config,
            "responsive": True,
            "displaylogo": False,
            "showSendToCloud": False,
            "modeBarButtonsToRemove": NEEDLESS,
        }

    # A browser reports the defaults it filled in and each change of its own; plotly would then delete from the kernel's
    # figure what equals a default, and a reloaded page would draw something else.
    def _handler_js2py_traceDeltas(self, change): ...
    def _handler_js2py_layoutDelta(self, change): ...
    def _handler_js2py_restyle(self, change): ...
    def _handler_js2py_relayout(self, change): ...
    def _handler_js2py_update(self, change): ...

    def changing(self) -> Changing:
        """A context in which the figure may be changed; all of it reaches the browser in one message at the end."""
        return Changing(self)

    def resend(self) -> None:
        """Send all that is drawn once more, to a page that may have missed a part."""
        with self._one_at_a_time:
            self._mend()
            *traces, layout = self._leaves()
            restyle = {
                name: [trace.get(name) for trace in traces] for part, name in self._ever_changed if part == "data"
            }
            relayout = {name: layout.get(name) for part, name in self._ever_changed if part == "layout"}
            self._send_update_msg(restyle, relayout, trace_indexes=list(range(len(traces))))

    def _leaves(self) -> list[dict]:
        """The properties of each trace, and last those of the layout."""
        return [dict(leaves(part)) for part in (*self._data, self._layout)]

    def _note_changes(self) -> None:
        *parts, layout = zip(self._first, self._leaves(), strict=True)
        for part, pairs in (("data", parts), ("layout", [layout])):
            for first, now in pairs:
                self._ever_changed |= {(part, name) for name in now if name not in first or now[name] != first[name]}

    def _mend(self) -> None:
        """Bring the synchronised copies up to date, which plotly never does: a page that loads later draws these."""
        with self.hold_sync():
            self._widget_data = copy.deepcopy(self._data)
            self._widget_layout = copy.deepcopy(self._layout)


class Changing:
    def __init__(self, figure: LiveFigure):
        self.figure, self.batch = figure, figure.batch_update()

    def __enter__(self) -> LiveFigure:
        self.figure._one_at_a_time.acquire()
        self.batch.__enter__()
        return self.figure

    def __exit__(self, *error) -> None:
        try:
            self.batch.__exit__(*error)
            self.figure._note_changes()
            self.figure._mend()
        finally:
            self.figure._one_at_a_time.release()


def leaves(value, path: str = "") -> Iterator[tuple[str, object]]:
    """('marker.size', [0, 9]), ('shapes[0].x1', 3): the properties of a trace or layout, one by one.

    Whole objects (an axis, a marker) must not be resent, nor what never changed (an axis' type): plotly would forget
    what it had worked out for them.
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple) and value and all(isinstance(inner, dict) for inner in value):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value
