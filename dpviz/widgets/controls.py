"""One control for each chosen field of a Config, and the short names that a panel uses for the course's symbols."""

from __future__ import annotations

import dataclasses
import math

import ipywidgets as w

from dpviz.questions.base import WORLD_SIZE, Checked, Field, fields_of
from dpviz.ranks.link import GBPS, LATENCY_US, Link
from dpviz.widgets.rows import Rows, step_of

SYMBOLS = {"world_size": "k", "accumulation_steps": "K", "micro_batch": "B"}
LABELS = {
    "world_size": "ranks k",
    "accumulation_steps": "accumulation steps K",
    "micro_batch": "micro-batch B",
    "link_gbps": "link, Gb/s",
    "link_latency_us": "latency, µs",
    "params": "parameters N",
    "memory_gb": "memory, GB",
    "activations_gb": "activations, GB",
    "headroom_gb": "headroom, GB",
    "flops_per_s": "FLOP/s",
    "tokens": "tokens a micro-batch",
    "bucket_cap_mb": "bucket cap, MiB",
}
OF_THE_LINK = {"link_gbps": GBPS, "link_latency_us": LATENCY_US}
OF_THE_LAUNCH = {"world_size": WORLD_SIZE} | OF_THE_LINK
COMMON = {"style": {"description_width": "initial"}}


def make_controls(
    config, controls, *, world_size: int | None = None, link: Link | None = None, live: bool = False
) -> dict[str, w.Widget]:
    """Return a widget for each name in `controls`, holding what `config`, `world_size` and `link` hold. Those of the
    link are disabled where there are no links.

    controls    a list of names, or a dict from name to None or a narrower allowance: (low, high), or a tuple of options
                (of numbers three or more)
    world_size  None where nothing is launched: then only the config's own fields can be controlled
    live        whether sliders speak while they are moved, and not only when they are released

    Raises ValueError for a name that the Config does not have, or a value outside of what its control allows.
    """
    if not isinstance(controls, dict | list | tuple):
        raise ValueError(
            f"controls is {controls!r}, but it must be a list of field names, or a dict from names to ranges."
        )
    known = _fields(config) if world_size is None else OF_THE_LAUNCH | _fields(config)
    link = link or Link()
    of_launch = (
        {}
        if world_size is None
        else {"world_size": world_size, "link_gbps": link.gbps, "link_latency_us": link.latency_us}
    )
    wanted = controls if isinstance(controls, dict) else dict.fromkeys(controls)
    made = {}
    for name, allowed in wanted.items():
        if name not in known:
            raise ValueError(f"there is no field named {name!r} to control. The fields are: {', '.join(known)}.")
        value = of_launch[name] if name in of_launch else getattr(config, name)
        made[name] = _control(_narrowed(known[name], allowed, value), value, live=live)
        if name in OF_THE_LINK and name in of_launch:
            support = Link.supported()
            made[name].disabled = not (support.latency if name == "link_latency_us" else support)
    return made


def why_disabled(controls: dict[str, w.Widget]) -> str:
    """Return why a control of the link is disabled, "" where none is."""
    if not any(name in OF_THE_LINK and control.disabled for name, control in controls.items()):
        return ""
    support = Link.supported()
    if support:
        return "latency cannot be set here: this kernel cannot delay packets (it lacks netem)"
    return f"the link's speed cannot be set here ({support.reason}): the ranks talk over the loopback"


def _narrowed(one: Field, allowed, value) -> Field:
    """The field with `allowed` in place of its own limits or options, still holding `value`."""
    limits = {"low": one.low, "high": one.high, "options": one.options}
    if allowed is not None and one.kind == "choice":
        strange = [option for option in allowed if option not in one.options]
        if strange:
            raise ValueError(f"{one.name} has no option {strange[0]!r}. It must be {one.allowed()}.")
        limits["options"] = tuple(allowed)
    elif one.kind in ("whole", "number") and isinstance(allowed, list | tuple) and len(allowed) > 2:
        limits["options"] = tuple(map(one.check, allowed))
        if value not in limits["options"]:
            raise ValueError(f"{one.name} is {value!r}, which is not among the options {tuple(allowed)}. Add it.")
    elif allowed is not None and one.kind in ("whole", "number", "list", "rows"):
        if not (
            isinstance(allowed, list | tuple) and len(allowed) == 2 and all(isinstance(a, int | float) for a in allowed)
        ):
            raise ValueError(f"the range for {one.name} is {allowed!r}, but it must be a pair of numbers, (low, high).")
        limits["low"], limits["high"] = allowed
        if not one.low <= limits["low"] <= limits["high"] <= one.high:
            raise ValueError(f"the range {allowed} for {one.name} must lie within {one.low:g} to {one.high:g}.")
    elif allowed is not None:
        raise ValueError(f"{one.name} has no range to narrow; give None, not {allowed!r}.")
    narrow = dataclasses.replace(one, **limits)
    narrow.check(value)
    return narrow


def _control(one: Field, value, *, live: bool) -> w.Widget:
    """The widget of a field. Unless `live`, none speaks while it is still being moved, since each value costs a run."""
    label = LABELS.get(one.name, one.name.replace("_", " "))
    common = {"description": label, "tooltip": one.help, **COMMON}
    slider = {"continuous_update": live, "layout": w.Layout(width=_room(label)), **common}
    if one.kind in ("whole", "number") and one.options:
        return w.SelectionSlider(options=[(_short(n), n) for n in one.options], value=value, **slider)
    if one.kind == "whole":
        return w.IntSlider(value, min=one.low, max=one.high, **slider)
    if one.kind == "number":
        return _number(one, value, slider)
    if one.kind == "flag":
        return w.Checkbox(value, indent=False, layout=w.Layout(width="auto", margin="2px 16px 2px 4px"), **common)
    if one.kind == "rows" and value is not None:
        return Rows(one, value, description=label, tooltip=one.help)
    if one.kind in ("rows", "list"):  # of any length, so it is typed, as on a command line
        text = _written([value]) if value else ""
        return w.Text(text, continuous_update=False, layout=w.Layout(width=_room(label)), **common)
    return w.Dropdown(options=one.options, value=value, layout=w.Layout(width="auto"), **common)


def _number(one: Field, value: float, slider: dict) -> w.Widget:
    if one.low > 0 and one.high / one.low >= 100:
        low, high = math.log10(one.low), math.log10(one.high)
        return w.FloatLogSlider(value, min=low, max=high, step=0.1, **slider)
    step = step_of(one)  # a browser rounds to it, so it must be one on which people's numbers lie
    return w.FloatSlider(value, min=one.low, max=one.high, step=step, readout_format=".3g", **slider)


def _short(number: float) -> str:
    """7e9 as '7B', 1024 as '1,024'."""
    for letter, size in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:,.6g}"


def _room(label: str) -> str:
    """The width of a slider: a track of about 110 px whatever its label is."""
    return f"{190 + 7 * len(label)}px"


def changed(config, values: dict):
    """Return `config` with the controls' values, those of the launch left out that are no fields of it. Raises
    ValueError for a value it cannot take.
    """
    known = _fields(config)
    fields = {name: value for name, value in values.items() if name in known or name not in OF_THE_LAUNCH}
    for name, value in fields.items():
        if isinstance(value, str) and known[name].kind in ("rows", "list"):
            fields[name] = known[name].parse(value) if value else None
    return dataclasses.replace(config, **fields) if fields else config


def link_of(values: dict, link: Link | None) -> Link | None:
    """Return `link` with the controls' values; None where neither says anything of a link."""
    fields = {name.removeprefix("link_"): value for name, value in values.items() if name in OF_THE_LINK}
    return dataclasses.replace(link or Link(), **fields) if fields else link


def _fields(config) -> dict[str, Field]:
    return {one.name: one for one in fields_of(type(config))} if isinstance(config, Checked) else {}


def shown(values: dict, *, defaults: dict | None = None) -> str:
    """'k=4, K=2, average=no': symbols first. With `defaults`, fields without a symbol appear only where they differ,
    rows always: they say how many ranks there are.
    """
    parts = [f"{symbol}={values[name]}" for name, symbol in SYMBOLS.items() if name in values]
    for name, value in values.items():
        if name not in SYMBOLS and (defaults is None or isinstance(value, tuple) or defaults.get(name) != value):
            parts.append(f"{name}={_in_words(value)}")
    return ", ".join(parts)


def _in_words(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return _written(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _written(rows) -> str:
    """((10, 30), (60, 100)) as it is written on a command line: '10,30/60,100'."""
    return "/".join(",".join(f"{number:.15g}" for number in row) for row in rows)
