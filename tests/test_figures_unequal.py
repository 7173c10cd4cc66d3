"""The figure of lesson 02: blocks that are equally tall where tokens weigh the same, arrows, and the curve."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from made_up import environment

from dpviz.figures import unequal, weight_blocks
from dpviz.figures.style import SMALL
from dpviz.questions.unequal import Config
from dpviz.records import Run, Wire
from dpviz.widgets.live_figure import LiveFigure

RULES = ("mean_of_micro_means", "mean_of_rank_means", "weighted")


def made(tokens, *, objective="token", parameters=6) -> Run:
    """A run of the experiment without ranks: a gradient for each micro-batch, put together by each rule in numpy."""
    config = Config(tokens=tokens, objective=objective)
    random = np.random.default_rng(0)
    means = [random.normal(size=(len(row), parameters)) + 1 for row in config.tokens]
    k, total = len(tokens), sum(map(sum, tokens))
    sequences = sum(count > 0 for row in tokens for count in row)
    weigh = {
        "mean_of_micro_means": lambda row, count: 1 / (len(row) * count),
        "mean_of_rank_means": lambda row, count: 1 / sum(row),
        "weighted": lambda row, count: k / total if objective == "token" else k / (sequences * count),
    }
    results = []
    for row, of_row in zip(tokens, means, strict=True):
        weights = {rule: [weigh[rule](row, count) / k if count else np.nan for count in row] for rule in RULES}
        local = {
            rule: sum((k * w * n * g for w, n, g in zip(weights[rule], row, of_row, strict=True) if n), 0 * of_row[0])
            for rule in RULES
        }
        results.append({"local": local, "weights": weights, "counts": list(row), "losses": dict.fromkeys(RULES, 3.0)})
    gradients = {rule: sum(result["local"][rule] for result in results) / k for rule in RULES}
    for result in results:
        result |= {"gradients": gradients, "join_gradient_norms": []}
    results[0] |= {"reference_gradient": gradients["weighted"], "reference_loss": 2.5}
    run = Run(
        experiment="unequal",
        config=asdict(config),
        results=results,
        records=[[]] * k,
        wire=[Wire()] * k,
        environment=environment(k),
        facts={},
    )
    run.facts.update(Config.facts(run))
    return run


def drawn(run, module=unequal):
    figure = module.make()
    verdict = module.draw(figure, run)
    return {trace.name: trace for trace in figure.data}, verdict, figure


def bars(trace):
    return list(zip(trace.x, trace.y, trace.base, strict=True))


def blocks(traces):
    """The heights of the blocks that the lines cut a bar into, by the bar's place."""
    heights = {}
    for name in ("tokens on dark", "tokens on light"):
        line = traces[name]
        for x, y in zip(line.x[::3], line.y[::3], strict=True):
            heights.setdefault(round(x + weight_blocks.WIDTH / 2, 6), []).append(y)
    return {x: np.diff([0, *ys]) for x, ys in heights.items()}


# -- blocks


def test_rank_means_give_every_rank_the_same_share_and_the_rule_gives_it_to_every_token():
    traces, _, _ = drawn(made(((10,), (90,))))
    assert [y for _, y, _ in bars(traces["share"])] == pytest.approx([0.5, 0.5, 0.1, 0.9])
    assert traces["times"].text == ("5×", "0.56×", "1×", "1×")


def test_blocks_are_equally_tall_under_the_right_rule_only():
    traces, _, figure = drawn(made(((10,), (90,))))
    of_bar = blocks(traces)
    ranks = len(of_bar) // 2
    naive, right = (sorted(of_bar)[:ranks], sorted(of_bar)[ranks:])
    assert np.ptp([height for x in right for height in of_bar[x]]) < 1e-4
    assert of_bar[naive[0]][0] == pytest.approx(9 * of_bar[naive[1]][0], rel=1e-3)
    assert "each block is 5 tokens" in figure.layout.xaxis.title.text


def test_micro_batches_of_a_rank_are_told_apart_where_they_weigh_differently():
    traces, _, figure = drawn(made(((10, 30), (60, 100))))
    assert traces["times"].text[:4] == ("5", "1.7", "0.83", "0.5")
    assert traces["times"].text[4:] == ("2.5", "0.62", "1", "1")
    assert len(bars(traces["share"])) == 3 * 4
    assert [note.text.split("</b>")[0] for note in figure.layout.annotations[:3]] == [
        "<b>micro means",
        "<b>rank means",
        "<b>sum · k/N",
    ]


def test_where_sequences_count_alike_a_block_is_a_sequence():
    traces, verdict, figure = drawn(made(((10, 300), (60, 20)), objective="sequence"))
    right = bars(traces["share"])[-4:]
    assert [share for _, share, _ in right] == pytest.approx([0.25] * 4)
    assert traces["tokens on dark"].x == () and "each block is a sequence" in figure.layout.xaxis.title.text
    assert traces["modelled"].x == () and verdict.good is False


def test_a_rank_without_a_token_has_no_bar_no_arrow_and_no_mean():
    run = made(((0,), (32,)))
    run.facts["relative_bias"] = float("nan")
    traces, verdict, figure = drawn(run)
    assert traces["times"].text[0] == "none" and traces["rank 0"].x == ()
    assert figure.layout.yaxis.range[1] > 1
    assert verdict.text == "rank means: loss not a number; sum·k/N: equal"


# -- arrows and curve


def test_the_rules_gradient_lies_on_that_of_one_process_and_the_rank_means_do_not():
    traces, verdict, _ = drawn(made(((5,), (200,), (40,))))
    tip = {name: (traces[name].x[1], traces[name].y[1]) for name in ("one process", "sum · k/N", "rank means")}
    assert tip["one process"] == tip["sum · k/N"] == (0, 1)
    assert np.hypot(tip["rank means"][0], tip["rank means"][1] - 1) > 0.05
    assert traces["labels"].text == ("0", "1", "2")
    assert verdict.good is False and verdict.text.endswith("sum·k/N: equal") and "<b>Biased:</b>" in verdict.html


def test_the_modelled_curve_begins_at_nothing_and_passes_through_the_measured_point():
    run = made(((5,), (200,)))
    traces, _, figure = drawn(run)
    x, y = traces["modelled"].x, traces["modelled"].y
    assert (x[0], y[0]) == (1, pytest.approx(0, abs=1e-12))
    assert traces["rank means, measured"].x == (40,)
    assert np.interp(np.log(40), np.log(x), y) == pytest.approx(run.facts["gradient_error_naive"], rel=0.02)
    assert traces["sum · k/N, measured"].y == (0,)
    assert 2 * run.facts["gradient_error_naive"] <= figure.layout.yaxis3.range[1] <= 5 * max(y)


def test_equal_ranks_are_fair():
    traces, verdict, _ = drawn(made(((20,),) * 4))
    assert verdict.good and verdict.text == "rank means: equal; sum·k/N: equal"
    assert len({share for _, share, _ in bars(traces["share"])}) == 1 and traces["modelled"].x == ()


def test_the_bias_of_several_runs_is_a_curve_of_what_was_measured():
    runs = [made(((16,), (n,))) for n in (16, 32, 64, 256)]
    traces = {trace.name: trace for trace in unequal.bias(runs).data}
    assert traces["rank means"].x == (1, 2, 4, 16)
    assert traces["rank means"].y == tuple(round(run.facts["gradient_error_naive"], 4) for run in runs)
    assert set(traces["sum · k/N"].y) == {0}
    assert traces["modelled"].line.dash == "dash"


# -- as every figure


@pytest.mark.parametrize("k", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_every_world_size_is_drawn_and_stays_within_the_repr(k, micro_batches):
    run = made(tuple(tuple(7 * rank + 5 * n + 3 for n in range(micro_batches)) for rank in range(k)))
    figure = unequal.show(run)
    assert "bdata" not in figure.to_json()
    assert f"{k} rank" in figure.layout.title.subtitle.text
    assert len(unequal.draw(unequal.make(), run).text) < 76


def test_a_figure_changed_is_the_figure_made_anew():
    changed = unequal.make()
    unequal.draw(changed, made(((5, 3), (200, 9), (17, 1))))
    unequal.draw(changed, made(((10,), (90,))))
    fresh = unequal.make()
    unequal.draw(fresh, made(((10,), (90,))))
    assert json.loads(changed.to_json()) == json.loads(fresh.to_json())


def test_a_panels_figure_is_the_one_made_anew_after_each_draw():
    live = LiveFigure(
        unequal.make()
    )  # changes what it is told in a batch, where of two values of one thing one is lost
    for tokens in (((5,), (200,)), ((20,), (20,)), ((10,), (90,)), ((90,), (10,))):
        with live.changing() as figure:
            unequal.draw(figure, made(tokens))
        fresh = unequal.make()
        unequal.draw(fresh, made(tokens))
        wanted, found = (json.loads(one.to_json())["layout"] for one in (fresh, live))
        assert {name: found[name] for name in wanted} == wanted


def test_a_loaded_run_is_drawn_alike(tmp_path):
    run = made(((10, 30), (60, 100)))
    run.save(tmp_path / "run.json")
    loaded = Run.load(tmp_path / "run.json")
    assert json.loads(unequal.show(run).to_json()) == json.loads(unequal.show(loaded).to_json())


def test_no_text_is_small():
    figure = unequal.show(made(((10, 30), (60, 100))))
    sizes = [note.font.size for note in figure.layout.annotations if note.font.size]
    assert min(sizes) >= SMALL
    for name in ("xaxis", "yaxis", "xaxis3", "yaxis3"):
        assert figure.layout[name].tickfont.size >= SMALL
