"""What every figure keeps to, for the tests of each."""

import json

from dpviz.widgets.live_figure import LiveFigure


def smallest_text(figure) -> float:
    """The least font size, px, that the figure sets anywhere."""

    def sizes(value, key=""):
        if isinstance(value, dict):
            for name, inner in value.items():
                yield from sizes(inner, f"{key}.{name}")
        elif isinstance(value, list):
            for inner in value:
                yield from sizes(inner, key)
        elif key.endswith("font.size"):
            yield value

    return min(sizes(json.loads(figure.to_json())))


def assert_redrawn_as_made_anew(module, things) -> None:
    """A panel draws inside of batch_update, where what was just written cannot be read back yet: one figure drawn again
    and again ends, each time, as one made for the last thing alone.
    """
    live = LiveFigure(module.make())
    for thing in things:
        with live.changing() as figure:
            module.draw(figure, thing)
        fresh = module.make()
        module.draw(fresh, thing)
        wanted, found = (json.loads(shown.to_json()) for shown in (fresh, live))
        assert {name: found["layout"][name] for name in wanted["layout"]} == wanted["layout"]
        for new, old in zip(wanted["data"], found["data"], strict=True):
            assert {name: old[name] for name in new} == new
