"""Memory against traffic, ZeRO stages 0 to 3: what a rank holds, term by term, and what it sends in a step.

Full is measured, pale the formula of a stage that was not run, dashed what is predicted. `show(runs)` takes runs of
`zero` that differ in their stage; a panel draws one run among the formulas of the other stages.
"""

import plotly.graph_objects as go

from dpviz.figures.kinds import COLOURS, STATE, bar, bytes_axis, model_text, size_text
from dpviz.figures.style import (
    INK,
    NO,
    REDUCED,
    REDUCED_EDGE,
    REFERENCE,
    SMALL,
    SOFT_INK,
    axis,
    caption,
    ink_on,
    layout,
    power,
    soft,
    step_above,
    text_trace,
    tint,
)
from dpviz.figures.verdict import Verdict, titled
from dpviz.figures.zero_runs import as_predicted, each_of, fullest
from dpviz.theory import memory, traffic
from dpviz.theory.plan import NAMES

TOPS = (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8)  # where axes may end: each has four even parts
VEIL = "rgba(255, 255, 255, 0.8)"  # behind text that a line may cross
WIDE = 0.86  # of a bar, in stages
TOLERANCE = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1}  # of losses, from those of stage 0
LEFT, RIGHT = [0, 0.53], [0.64, 1]


class Scaled:
    """The figure with a card's capacity drawn in: as if the model had `params` parameters, the card `memory_gb` GB."""

    def __init__(self, *, params: float = 7e9, memory_gb: float = 80.0):
        self.params, self.memory_gb = params, memory_gb

    def make(self) -> go.Figure:
        """The figure with every trace in it and nothing drawn: 464 px high."""
        figure = layout(go.Figure(), height=464, margin={"l": 62, "r": 14, "t": 80, "b": 50}, barmode="stack")
        for kind in STATE:
            for pale in (False, True):
                figure.add_trace(bar(kind, pale=pale, width=WIDE))
        _add_sent(figure)
        for number in ("", "2"):
            where = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
            line = {"color": REFERENCE, "width": 2, "dash": "dot"}
            more = {"mode": "lines", "hoverinfo": "skip", **where}
            figure.add_trace(go.Scatter(name=f"predicted{number}", x=[], y=[], line=line, **more))
        figure.add_trace(text_trace("kinds"))
        line = {"color": NO, "width": 2, "dash": "longdash"}
        figure.add_trace(go.Scatter(name="card", x=[-0.5, 3.5], y=[0, 0], mode="lines", line=line, hoverinfo="skip"))
        stages = {"tickvals": list(memory.STAGES), "range": [-0.5, 3.5], "showgrid": False}
        stages["ticktext"] = [name.replace("-", "<br>") for name in NAMES]  # narrow bars have narrow names
        stages["tickfont"] = {"size": 13, "color": INK}
        figure.update_layout(
            xaxis=axis(domain=LEFT, anchor="y", **stages),
            yaxis=axis("", domain=[0, 1], anchor="x", range=[0, 1]),
            xaxis2=axis(domain=RIGHT, anchor="y2", **stages),
            yaxis2=axis("", domain=[0, 1], anchor="x2", range=[0, 1]),
            annotations=[
                caption("", x=0, y=1.02, name="held"),
                caption("", x=RIGHT[0], y=1.02, name="sent"),
                caption("", x=3.48, y=0, xref="x", yref="y", xanchor="right", bgcolor=VEIL, name="card")
                | {"font": {"size": SMALL, "color": NO}},
                *(_total(number, stage) for number in ("", "2") for stage in memory.STAGES),
            ],
        )
        return figure

    def draw(self, figure: go.Figure, run) -> Verdict:
        """Change `figure` (of `make`) to show a run, or a list of runs of different stages, and say what each costs."""
        runs = _by_stage(run)
        self._draw_held(figure, runs)
        _draw_sent(figure, runs)
        return _verdict(runs)

    def show(self, run) -> go.Figure:
        """The figure of a run or of several, its verdict as the title."""
        figure = self.make()
        return titled(figure, self.draw(figure, run), run)

    def _draw_held(self, figure: go.Figure, runs: dict) -> None:
        traces = {trace.name: trace for trace in figure.data}
        states, formulas = _states(runs), _formulas(runs)
        for kind in STATE:
            for pale in (False, True):
                shown = {s: getattr(states[s], kind) for s in memory.STAGES if (s in runs) is not pale}
                trace = traces[f"{kind} by formula" if pale else kind]
                trace.x, trace.y = list(shown), list(shown.values())
                how = "by the formula" if pale else "measured"
                trace.hovertext = [
                    f"<b>{NAMES[s]}</b>, {kind}: {count:,} B {how}"
                    + f"<br>formula {getattr(formulas[s], kind):,} B"
                    + ("" if pale else _spread(runs[s]))
                    for s, count in shown.items()
                ]
        _set_ticks(traces["predicted"], {s: formulas[s].total for s in memory.STAGES})
        one = next(iter(runs.values()))
        factor = self.params / one.facts["parameters"]
        totals = {s: states[s].total for s in memory.STAGES}
        notes = {note.name: note for note in figure.layout.annotations}
        for s, count in totals.items():
            scaled = size_text(factor * count, digits=4)
            notes[f"total {s}"].update(y=count, text=f"<b>{size_text(count)}</b><br>{soft(scaled)}")
        capacity = self.memory_gb * memory.GB / factor
        ticks, unit = bytes_axis(step_above(1.17 * max(*totals.values(), 0.9 * capacity), TOPS))
        traces["card"].y = [capacity, capacity]
        _draw_kinds(traces["kinds"], states[0], pale=0 not in runs, least=0.055 * ticks["range"][1])
        figure.layout.yaxis.update(**ticks)
        figure.layout.yaxis.title.text = f"{unit} a rank"
        notes["card"].update(y=capacity, text=f"a card of {self.memory_gb:g} GB")
        what = f"{one.facts['parameters']:,} parameters of {each_of(one).total} bytes, k = {_ranks(one)}"
        key = f"{_key(runs)}; grey: of a {model_text(self.params)} model"
        notes["held"].text = f"<b>Model state that a rank holds</b><br>{soft(what)}<br>{soft(key)}"


def _total(number: str, stage: int) -> dict:
    """The place of the two lines over a bar."""
    where = {"xref": f"x{number}", "yref": f"y{number}", "xanchor": "center", "align": "center", "bgcolor": VEIL}
    font = {"size": SMALL, "color": INK}
    return caption("", x=stage, y=0, name=f"total{number} {stage}", **where) | {"font": font, "borderpad": 0}


def _draw_kinds(trace: go.Scatter, state: memory.State, *, pale: bool, least: float) -> None:
    """Name each part of DP's bar that is at least so high."""
    shown = [(i, kind) for i, kind in enumerate(STATE) if state[i] >= least]
    trace.x, trace.y = [0] * len(shown), [sum(state[:i]) + state[i] / 2 for i, _ in shown]
    trace.text = [kind for _, kind in shown]
    trace.textfont.color = [INK if pale else ink_on(COLOURS[kind]) for _, kind in shown]


def _add_sent(figure: go.Figure) -> None:
    where = {"xaxis": "x2", "yaxis": "y2", "width": WIDE, "hoverinfo": "text"}
    for name, colour, width in (("sent", REDUCED, 1.5), ("sent by formula", tint(REDUCED, white=0.8), 1)):
        line = {"color": REDUCED_EDGE, "width": width}
        figure.add_trace(go.Bar(name=name, x=[], y=[], hovertext=[], marker={"color": colour, "line": line}, **where))
    for name, dash in (("once", "solid"), ("one and a half", "dash")):
        line = {"color": SOFT_INK, "width": 1, "dash": dash}
        more = {"mode": "lines+text", "text": ["1.5 ×" if dash == "dash" else "", ""], "textposition": "top right"}
        font = {"size": SMALL, "color": SOFT_INK}
        places = {"x": [-0.5, 3.5], "y": [0, 0], "xaxis": "x2", "yaxis": "y2", "hoverinfo": "skip"}
        figure.add_trace(go.Scatter(name=name, line=line, textfont=font, **more, **places))


def _draw_sent(figure: go.Figure, runs: dict) -> None:
    traces = {trace.name: trace for trace in figure.data}
    one = next(iter(runs.values()))
    base = traffic.zero_bytes(one.facts["payload_bytes"], _ranks(one), stage=0)
    sent, predicted = _sent(runs), _sent_predicted(runs)
    for name, pale in (("sent", False), ("sent by formula", True)):
        shown = {s: sent[s] for s in memory.STAGES if (s in runs) is not pale}
        traces[name].x, traces[name].y = list(shown), list(shown.values())
        traces[name].hovertext = [
            f"<b>{NAMES[s]}</b>: {count:,.0f} B a step "
            + ("by the formula" if pale else f"({runs[s].environment.wire.partition(':')[0]})")
            + f"<br>predicted {predicted[s]:,.0f} B"
            for s, count in shown.items()
        ]
    _set_ticks(traces["predicted2"], predicted)
    notes = {note.name: note for note in figure.layout.annotations}
    for s, count in sent.items():
        text = f"<b>{_times(runs, s):.2f} ×</b><br>{soft(size_text(count))}" if base else "0 B"
        notes[f"total2 {s}"].update(y=count, text=text)
    for name, times in (("once", 1), ("one and a half", 1.5)):
        traces[name].y = [times * base] * 2
    ticks, unit = bytes_axis(step_above(1.2 * max(*sent.values(), 1.5 * base, 1), TOPS))
    figure.layout.yaxis2.update(**ticks)
    figure.layout.yaxis2.title.text = f"{unit} a rank and step"
    K = int(one.config["accumulation_steps"])
    what = ("lines: 1 and 1.5 times", "2(k−1)/k·P") if base else ("one rank has no one", "to send to")
    notes["sent"].text = f"<b>Sent in a step</b>, K = {K}<br>{soft(what[0])}<br>{soft(what[1])}"


def _set_ticks(trace: go.Scatter, levels: dict) -> None:
    trace.x = [at for s in levels for at in (s - 0.46, s + 0.46, None)]
    trace.y = [at for level in levels.values() for at in (level, level, None)]


def _by_stage(run) -> dict:
    """The runs by their stage. Raises ValueError where they cannot stand in one figure."""
    runs = list(run) if isinstance(run, list | tuple) else [run]
    stages = {int(one.config["stage"]): one for one in runs}
    if not runs or len(stages) < len(runs):
        raise ValueError("give one run of the experiment zero for each stage that is to be shown, up to four.")
    alike = {(one.facts["parameters"], one.facts["payload_bytes"], _ranks(one)) for one in runs}
    if len(alike) > 1:
        raise ValueError(
            f"the runs differ in parameters, bytes sent and ranks: {sorted(alike)}. Change the stage only."
        )
    return dict(sorted(stages.items()))


def _ranks(run) -> int:
    return len(run.results)


def _formulas(runs: dict) -> dict:
    one = next(iter(runs.values()))
    N, k, each = one.facts["parameters"], _ranks(one), each_of(one)
    return {stage: memory.model_state(N, k, stage=stage, each=each) for stage in memory.STAGES}


def _states(runs: dict) -> dict:
    return {s: fullest(runs[s]) if s in runs else formula for s, formula in _formulas(runs).items()}


def _spread(run) -> str:
    totals = [sum(held.values()) for held in run.facts["bytes_per_rank"]]
    if min(totals) == max(totals):
        return ""
    return f"<br>in all {min(totals):,} to {max(totals):,} B, the fullest rank shown"


def _sent_predicted(runs: dict) -> dict:
    """Bytes of each stage, gloo's headers included where they are known."""
    one = next(iter(runs.values()))
    K, payload = int(one.config["accumulation_steps"]), one.facts["payload_bytes"]
    of_books = {
        s: traffic.zero_bytes(payload, _ranks(one), stage=s, accumulation_steps=K)
        for s in memory.STAGES
        if s not in runs
    }
    framed = {
        s: max(r.facts["wire_bytes_predicted"]) + (r.facts["framing_bytes_predicted"][0] or 0) for s, r in runs.items()
    }
    return of_books | framed


def _sent(runs: dict) -> dict:
    predicted = _sent_predicted(runs)
    return {s: max(runs[s].facts["wire_bytes"]) if s in runs else predicted[s] for s in memory.STAGES}


def _times(runs: dict, stage: int) -> float:
    """What the stage sends, gloo's headers left out, over what DP needs."""
    one = next(iter(runs.values()))
    base = traffic.zero_bytes(one.facts["payload_bytes"], _ranks(one), stage=0)
    if stage not in runs:
        return _sent_predicted(runs)[stage] / base
    return runs[stage].facts["wire_over_payload"] * runs[stage].facts["payload_bytes"] / base


def _key(runs: dict) -> str:
    return "dotted: by the formula" if len(runs) == 4 else "pale: by the formula"


def _verdict(runs: dict) -> Verdict:
    """What each stage holds and sends beside DP; wrong where a rank holds something else than predicted, or where it
    did not train as stage 0 does.
    """
    states = _states(runs)
    for stage, run in runs.items():
        if not as_predicted(run):
            held = size_text(states[stage].total)
            wanted = size_text(max(sum(one.values()) for one in run.facts["bytes_predicted"]))
            html = f"<b>Not divided as it should be:</b> under {NAMES[stage]} a rank holds {held}, not {wanted}."
            return Verdict(html=html, text=f"{NAMES[stage]}: bytes as predicted: no", good=False)
        off = float(run.facts["max_difference_from_stage_0"])
        if not off <= TOLERANCE["bfloat16" if run.config["mixed_precision"] else run.config["dtype"]]:
            html = f"<b>Not the same training:</b> under {NAMES[stage]} losses differ by {power(off)} from stage 0."
            return Verdict(html=html, text=f"{NAMES[stage]}: trains as stage 0: no", good=False)
    alone = _ranks(next(iter(runs.values()))) == 1
    shares = {s: f"{100 * states[s].total / states[0].total:.3g} %" for s in runs}
    last, *before = sorted(runs, reverse=True)
    html = f"<b>{NAMES[last]}: {shares[last]} of DP's memory"
    html += "</b>" if alone else f" for {_times(runs, last):.2f} × its traffic</b>"
    if before and before[0]:  # DP itself is what all are compared with
        html += f"; {NAMES[before[0]]}: {shares[before[0]]}"
        html += "" if alone else f" for {_times(runs, before[0]):.2f} ×"
    told = [f"{NAMES[s]} {share}" + ("" if alone else f" for {_times(runs, s):.1f} ×") for s, share in shares.items()]
    return Verdict(html=html + ".", text=f"{', '.join(told)}; as predicted: yes", good=True)


OF_7B = Scaled()
make, draw, show = OF_7B.make, OF_7B.draw, OF_7B.show
