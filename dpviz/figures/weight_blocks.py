"""What each token weighs in the update: a bar a rank, cut into blocks of equally many tokens, under each of the rules.

The bar is the rank's share of the update. Where blocks are equally tall, tokens weigh the same.
"""

import numpy as np
import plotly.graph_objects as go

from dpviz.figures.style import INK, axis, caption, ink_on, power, rank_colour, soft, step_above, text_trace

RULES = {"mean_of_micro_means": "micro means", "mean_of_rank_means": "rank means", "weighted": "sum · k/N"}
WIDTH, GAP = 0.86, 0.7  # of a bar, and between the rules, in bars
MOST_BLOCKS = 40
TOPS = (0.3, 0.5, 0.75, 1.1)  # of the axis: it moves in steps
HALO = "0 0 2px #fff, 0 0 2px #fff, 0 0 3px #fff"


def add_blocks(figure: go.Figure, *, x: list[float]) -> None:
    """Add the traces, the axes x and y, and the captions; x is the domain."""
    figure.add_trace(
        go.Bar(
            name="share",
            x=[],
            y=[],
            base=[],
            width=[],
            marker={"color": [], "line": {"width": 1.5, "color": INK}},
            hovertext=[],
            hoverinfo="text",
        )
    )
    for name, colour, width in (("tokens on dark", "#ffffff", 1.2), ("tokens on light", INK, 0.8)):
        line = {"color": colour, "width": width}
        figure.add_trace(go.Scatter(name=name, x=[], y=[], mode="lines", line=line, hoverinfo="skip"))
    figure.add_trace(
        text_trace("times", textposition=[], textfont={"size": 13, "color": INK, "weight": 700, "shadow": HALO})
    )
    figure.update_layout(
        barmode="overlay",
        xaxis=axis("rank", domain=x, range=[-0.6, 3], showgrid=False, tickvals=[], ticktext=[]),
        yaxis=axis("share of the update", range=[0, TOPS[0]], tickformat=".0%", zeroline=True, dtick=0.1),
    )
    for rule in RULES:
        figure.add_annotation(
            caption("", x=0, xref="x", y=1.015, yref="y domain", name=rule, xanchor="center", align="center")
        )


def draw_blocks(figure: go.Figure, run) -> None:
    """Fill them from the facts token_weights and tokens_in_loss, the losses and the gradient errors."""
    counts, k = run.facts["tokens_in_loss"], len(run.results)
    by_sequence = run.config["objective"] == "sequence"
    total = sum(map(sum, counts))
    units = sum(count > 0 for row in counts for count in row) if by_sequence else total
    block = _block(total)
    shown = rules_of(run)
    traces = {trace.name: trace for trace in figure.data}
    bars, edges, labels = [], {"tokens on dark": [], "tokens on light": []}, []
    for position, rule in enumerate(shown):
        for rank, (row, weights) in enumerate(zip(counts, run.facts["token_weights"][rule], strict=True)):
            x, base, parts = _place(position, rank, k), 0.0, []
            for count, weight in zip(row, weights, strict=True):
                share = (weight or 0.0) * count / total
                times = share * units / (1 if by_sequence else max(count, 1))
                bars.append((x, share, base, rank_colour(rank), _hover(rank, count, share, times, by_sequence)))
                if not by_sequence and count:
                    kind = "tokens on dark" if ink_on(rank_colour(rank)) != INK else "tokens on light"
                    cuts = [base + share * n / count for n in range(block, count, block)]
                    edges[kind] += [(x - WIDTH / 2, x + WIDTH / 2, cut) for cut in cuts]
                parts.append((base, share, times if count else None))
                base += share
            labels += _labels(x, parts, bars=k * len(shown))
    highest = max(base + share for _, share, base, *_ in bars)
    top = next(step for step in TOPS if step >= 1.08 * highest)
    _set(traces, bars, edges, labels)
    figure.layout.yaxis.update(range=[0, top], dtick=0.1 if top <= 0.5 else 0.25)
    ticks = [(_place(position, rank, k), rank) for position in range(len(shown)) for rank in range(k)]
    figure.layout.xaxis.update(
        range=[-0.6, _place(len(shown) - 1, k - 1, k) + 0.6],
        tickvals=[x for x, _ in ticks],
        ticktext=[str(rank) for _, rank in ticks],
    )
    block_text = "a sequence" if by_sequence else f"{block} token{'s' * (block > 1)}"
    weighs = f"number: what a {'sequence' if by_sequence else 'token'} weighs, 1 is fair"
    figure.layout.xaxis.title.text = f"rank<br>{soft(f'each block is {block_text}; {weighs}')}"
    _set_captions(figure, run, shown)


def rules_of(run) -> list[str]:
    """The rules to show: that of micro-batches only where a rank has several."""
    several = max(map(len, run.facts["tokens_in_loss"])) > 1
    return [rule for rule in RULES if several or rule != "mean_of_micro_means"]


def error_of(run, rule: str) -> float:
    name = {"mean_of_micro_means": "micro", "mean_of_rank_means": "naive", "weighted": "weighted"}[rule]
    return float(run.facts[f"gradient_error_{name}"])


def _place(position: int, rank: int, k: int) -> float:
    return position * (k + GAP) + rank


def _block(total: int) -> int:
    return max(1, int(step_above(total / MOST_BLOCKS)))


def _hover(rank: int, count: int, share: float, times: float, by_sequence: bool) -> str:
    what = "sequence" if by_sequence else "token"
    return (
        f"<b>rank {rank}</b>, {count} token{'s' * (count != 1)}<br>{100 * share:.1f} % of the update"
        f"<br>a {what} weighs {times:.3g} times its fair share"
    )


def _labels(x: float, parts: list[tuple[float, float, float | None]], *, bars: int) -> list:
    """One label over a bar whose parts weigh alike, else one in each part: (x, y, text, position)."""
    with_tokens = [part for part in parts if part[2] is not None]
    if not with_tokens:
        return [(x, 0.0, "none", "top center")]
    times = [part[2] for part in with_tokens]
    if max(times) - min(times) < 1e-6 * max(times):
        return [(x, sum(share for _, share, _ in parts), _times(times[0], bars), "top center")]
    return [(x, base + share / 2, _times(value, bars), "middle center") for base, share, value in with_tokens]


def _times(value: float, bars: int) -> str:
    """The fewer bars, the more room for digits."""
    if bars > 8:
        return f"{value:.1g}".removeprefix("0") if value < 0.95 else f"{value:.0f}"
    return f"{value:.2g}" + "×" * (bars <= 4)


def _set(traces: dict, bars: list, edges: dict, labels: list) -> None:
    share = traces["share"]
    share.x, share.y, share.base = [bar[0] for bar in bars], _rounded(bars, 1), _rounded(bars, 2)
    share.width, share.marker.color = [WIDTH] * len(bars), [bar[3] for bar in bars]
    share.hovertext = [bar[4] for bar in bars]
    for name, lines in edges.items():
        traces[name].x = [value for left, right, _ in lines for value in (left, right, None)]
        traces[name].y = [value for *_, y in lines for value in (round(y, 5), round(y, 5), None)]
    times = traces["times"]
    times.x, times.y = [label[0] for label in labels], _rounded(labels, 1)
    times.text, times.textposition = [label[2] for label in labels], [label[3] for label in labels]


def _rounded(rows: list, column: int) -> list[float]:
    return [round(float(row[column]), 5) for row in rows]


def _set_captions(figure: go.Figure, run, shown: list[str]) -> None:
    notes = {note.name: note for note in figure.layout.annotations}
    k = len(run.results)
    for rule, name in RULES.items():
        position, words = 0.0, ""
        if rule in shown:
            error = error_of(run, rule)
            off = "gradient right" if error < 1e-4 else f"gradient {percent(error)} off"
            words = f"<b>{name}</b><br>{soft(off)}"
            position = _place(shown.index(rule), (k - 1) / 2, k)
        notes[rule].update(x=position, text=words)  # each once: within a batch a second value may be lost


def percent(error: float) -> str:
    if not np.isfinite(error):
        return power(error)
    return f"{100 * error:.2g} %" if error < 1 else f"{100 * error:.0f} %"
