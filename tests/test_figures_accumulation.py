"""The figure of lesson 03: marks where ranks communicated, cells that stay at home, lines that split, and the costs."""

import json
from dataclasses import replace

import numpy as np
import pytest
from figure_checks import smallest_text
from made_up import environment

from dpviz.figures import accumulation
from dpviz.figures.accumulation import COLUMNS, RANKS
from dpviz.figures.style import RANK_COLOURS
from dpviz.records import Run, Step, Wire

PATTERNS = {"last": (0, 0, 0, 1), "every": (1, 1, 1, 1), "off_by_one": (1, 0, 0, 0)}
ONCE = 30_000


def made_up(k=4, *, sync="last", windows=None, updates=2, scale=1.0, recompute=False, **facts) -> Run:
    windows = windows or [list(PATTERNS[sync])] * updates
    apart, calls, steps = sync == "off_by_one", sum(windows[0]), len(windows[0])
    random = np.random.default_rng(0)
    moves = 1e-3 * random.normal(size=(len(windows), 5))
    own = 1e-3 * random.normal(size=(k, len(windows), 5)) * apart
    ends = np.cumsum(moves + own, axis=1)
    records = [
        [
            Step(
                step=step,
                values={
                    "all_reduces_by_micro_batch": window,
                    "parameters_before": list(ends[rank, step - 1] if step else np.zeros(5)),
                    "parameters": list(ends[rank, step]),
                    "digest": f"{rank if apart else 0:x}abc0123456789de",
                },
            )
            for step, window in enumerate(windows)
        ]
        for rank in range(k)
    ]
    sent = calls * ONCE * (k > 1)
    return Run(
        experiment="accumulation",
        config={"accumulation_steps": steps, "micro_batch": 4, "recompute": recompute, "inputs": None},
        results=[{} for _ in range(k)],
        records=records,
        wire=[Wire(sent=sent, received=sent)] * k,
        environment=environment(k),
        facts={
            "all_reduces": calls,
            "wire_bytes": [sent] * k,
            "wire_bytes_predicted": [sent] * k,
            "gradient_bytes": 20_000,
            "gradients_equal": not apart and scale == 1,
            "gradient_scale_by_update": [scale] * len(windows),
            "ranks_identical": not apart,
            "first_divergent_step": 0 if apart else None,
            "samples": 4 * k * steps,
            "activations": {
                "micro_batch_kept": 3000,
                "micro_batch_recomputed": 160,
                "window_kept": 12_000,
                "window_recomputed": 640,
            },
        }
        | facts,
    )


def drawn(run):
    figure = accumulation.make()
    verdict = accumulation.draw(figure, run)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def notes(figure):
    return {note.name: note.text for note in figure.layout.annotations}


# -- where the ranks communicated


@pytest.mark.parametrize(("sync", "columns"), [("last", [4, 8]), ("every", range(1, 9)), ("off_by_one", [1, 5])])
def test_a_mark_stands_after_the_micro_batch_that_communicated(sync, columns):
    traces, _, _ = drawn(made_up(sync=sync))
    assert sorted(traces["all-reduce"].x) == sorted(4 * [column + 0.4 for column in columns])
    assert sorted(set(traces["all-reduce"].y)) == [0, 1, 2, 3]
    assert [x for x in traces["collectives"].x if x is not None] == [c + 0.4 for c in columns for _ in "12"]


def test_a_line_joins_only_ranks_that_communicated_together():
    run = made_up(2)
    run.records[1][0].values["all_reduces_by_micro_batch"] = [0, 1, 0, 0]
    traces, _, _ = drawn(run)
    assert [x for x in traces["collectives"].x if x is not None] == [8.4, 8.4]


def test_what_no_all_reduce_follows_in_its_window_stays_on_its_rank():
    traces, _, _ = drawn(made_up(sync="off_by_one"))
    assert sorted(set(traces["stays on its rank"].x)) == [2, 3, 4, 6, 7, 8]
    assert sorted(set(traces["reaches every rank"].x)) == [1, 5]
    assert traces["stays on its rank"].marker.symbol != traces["reaches every rank"].marker.symbol
    traces, _, _ = drawn(made_up(sync="last"))
    assert traces["stays on its rank"].x == () and len(traces["reaches every rank"].x) == 4 * 8


def test_a_short_window_is_drawn_as_long_as_it_is():
    traces, _, _ = drawn(made_up(2, windows=[[0, 0, 1], [1]]))
    assert sorted(set(traces["all-reduce"].x)) == [3.4, 4.4]
    assert traces["numbers"].text == ("1", "2", "3", "1")


def test_no_more_micro_batches_are_drawn_than_fit():
    traces, figure, _ = drawn(made_up(2, updates=100))
    assert max(traces["reaches every rank"].x) == COLUMNS
    assert figure.layout.xaxis.range[1] < 1.2 * COLUMNS
    assert traces["rank 0"].x[-3] == COLUMNS + 0.5


# -- where they part


def test_the_lines_split_where_the_ranks_part():
    traces, figure, _ = drawn(made_up(sync="off_by_one"))
    lines = [traces[f"rank {rank}"] for rank in range(4)]
    assert {line.y[0] for line in lines} == {0}
    assert len({line.y[1] for line in lines}) == 4 and {line.x[1] for line in lines} == {4.5}
    assert {line.line.shape for line in lines} == {"hv"}
    assert "differ" in notes(figure)["lines"]


def test_equal_lines_lie_on_each_other_and_all_are_seen():
    traces, figure, _ = drawn(made_up())
    lines = [traces[f"rank {rank}"] for rank in range(4)]
    assert len({line.y for line in lines}) == 1
    widths = [line.line.width for line in lines]
    assert widths == sorted(set(widths), reverse=True)
    assert traces["labels"].text == ("<b>all</b> 0abc",)
    assert "the same fingerprint" in notes(figure)["lines"]


def test_labels_tell_the_fingerprint_of_a_rank_that_stands_alone():
    traces, _, _ = drawn(made_up(2, sync="off_by_one"))
    assert set(traces["labels"].text) == {"<b>0</b> 0abc", "<b>1</b> 1abc"}


def test_all_are_said_to_be_together_only_where_their_fingerprints_are():
    run = made_up(8)
    for rank, records in enumerate(run.records):
        for step in records:
            step.values["digest"] = f"{rank}abc"
    traces, _, _ = drawn(run)
    assert traces["labels"].text == ("<b>0, 1, 2, 3, 4…</b>",)


def test_the_parameter_that_is_drawn_is_the_one_that_tells_the_ranks_apart_best():
    run = made_up(2, updates=1)
    for rank, records in enumerate(run.records):
        records[0].values["parameters"] = [5.0, 5.0 + 0.1 * rank, 0.01 * rank, 9.0, 0.0]
    traces, _, _ = drawn(run)
    assert [traces[f"rank {rank}"].y[1] for rank in (0, 1)] == [0, 0.01]


def test_the_axis_of_the_lines_moves_in_steps():
    _, one, _ = drawn(made_up())
    run = made_up()
    for records in run.records:
        for step in records:
            step.values["parameters"] = [1.01 * value for value in step.values["parameters"]]
    _, other, _ = drawn(run)
    assert one.layout.yaxis2.range == other.layout.yaxis2.range


# -- what it costs


def test_the_counter_and_the_bar_beside_one_and_k_all_reduces():
    for sync, calls in (("last", 1), ("every", 4)):
        traces, figure, _ = drawn(made_up(sync=sync))
        assert traces["sent"].x == (calls * ONCE,)
        assert [x for x in traces["formula"].x if x is not None] == [ONCE, ONCE, 4 * ONCE, 4 * ONCE]
        assert f"<b>{calls}</b>" in notes(figure)["counter"]
        assert figure.layout.xaxis3.range == (0, 1.06 * 4 * ONCE)


def test_without_any_all_reduce_the_formula_is_still_there():
    traces, figure, _ = drawn(made_up(windows=[[0, 0]]))
    assert traces["sent"].x == (0,) and traces["formula"].x[0] == 1.5 * 20_000
    assert "<b>0</b>" in notes(figure)["counter"]


@pytest.mark.parametrize("recompute", [False, True])
def test_the_runs_own_activations_are_outlined(recompute):
    traces, figure, _ = drawn(made_up(recompute=recompute))
    bars = traces["activations"]
    assert bars.x == (3000, 160, 12_000, 640)
    assert bars.marker.line.width.index(max(bars.marker.line.width)) == int(recompute)
    assert figure.layout.yaxis4.ticktext == ("4 at a time", "16 at once")


def test_a_window_too_large_to_be_tried_says_so():
    found = {"micro_batch_kept": 3000, "micro_batch_recomputed": 160, "window_kept": None, "window_recomputed": None}
    traces, _, _ = drawn(made_up(activations=found))
    assert traces["activations"].text[2:] == ("not tried", "not tried")


# -- what it says


@pytest.mark.parametrize(
    ("run", "begins", "text", "good"),
    [
        (made_up(), "<b>Right, with 1 all-reduce", "gradient right: yes, 1 all-reduce, ranks identical: yes", True),
        (
            made_up(sync="every"),
            "<b>Right, but 4 all-reduces",
            "gradient right: yes, 4 all-reduces, ranks identical: yes",
            None,
        ),
        (
            made_up(sync="off_by_one"),
            "<b>Wrong, with 1 all-reduce:</b> 3 of 4 micro-batches stay on their rank, and the ranks part at update 1",
            "gradient right: no, 1 all-reduce, ranks identical: no",
            False,
        ),
        (
            made_up(scale=4.0),
            "<b>Wrong alike on every rank:</b> the gradient of update 1 is 4 times its due",
            "gradient right: no, 1 all-reduce, ranks identical: yes",
            False,
        ),
    ],
)
def test_the_verdict(run, begins, text, good):
    verdict = accumulation.draw(accumulation.make(), run)
    assert verdict.html.startswith(begins)
    assert (verdict.text, verdict.good) == (text, good)


def test_the_worst_update_is_the_one_that_is_named():
    run = made_up(2, updates=3)
    facts = run.facts | {"gradients_equal": False, "gradient_scale_by_update": [1.0, 1.0, 0.25]}
    assert "update 3 is 0.25 times" in accumulation.draw(accumulation.make(), replace(run, facts=facts)).html


# -- as all figures do


@pytest.mark.parametrize("k", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("sync", PATTERNS)
def test_every_world_size_is_drawn(k, sync):
    figure = accumulation.show(made_up(k, sync=sync))
    text = figure.to_json()
    assert "bdata" not in text and "NaN" not in text
    assert f"{k} rank" in figure.layout.title.subtitle.text
    traces = {trace.name: trace for trace in figure.data}
    assert len(traces["other ranks"].x) == max(0, k - RANKS) * 5
    cells = [*traces["reaches every rank"].marker.color, *traces["stays on its rank"].marker.color]
    assert len(cells) == 8 * k and len(set(cells)) == min(k, len(RANK_COLOURS))


def test_a_figure_changed_is_the_figure_made_anew():
    changed, fresh = accumulation.make(), accumulation.make()
    for run in (made_up(12, sync="off_by_one"), made_up(1, windows=[[1]]), made_up(3, recompute=True)):
        with changed.batch_update():  # as a panel does: what is read inside is still the old value
            accumulation.draw(changed, run)
    accumulation.draw(fresh, made_up(3, recompute=True))
    assert json.loads(changed.to_json()) == json.loads(fresh.to_json())


def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path):
    run = made_up(sync="off_by_one")
    run.save(tmp_path / "run.json")
    assert accumulation.show(Run.load(tmp_path / "run.json")).to_json() == accumulation.show(run).to_json()


def test_no_text_is_smaller_than_twelve():
    assert smallest_text(accumulation.show(made_up())) >= 12
