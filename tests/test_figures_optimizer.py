"""The figures of lesson 06 on made-up runs: clipping, the fault board, resumed curves, learning rates."""

import json
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import pytest
from made_up import environment

from dpviz.figures import clipping, fault_board, learning_rates, resume_curves
from dpviz.figures.style import INK
from dpviz.records import Run, Step


def run_of(config, results, records, facts) -> Run:
    k = len(records)
    return Run(
        experiment="made up",
        config=config,
        results=results,
        records=records,
        wire=[],
        environment=environment(k),
        facts=facts,
    )


def clipped(vector, limit):
    return np.asarray(vector, dtype=float) * min(1.0, limit / max(float(np.linalg.norm(vector)), 1e-300))


def clipping_run(k=2, *, gradients=None, order="clip_then_average", max_norm=1.0, n=2, update=None) -> Run:
    """`gradients` are given ones; without, k random ones of n entries, as of a model."""
    rows = gradients or np.random.default_rng(0).normal(size=(k, n))
    local = np.array([np.concatenate(rows)] * len(rows) if "shard" in order and gradients else rows, dtype=float)
    reference = clipped(local.mean(0), max_norm)
    first = np.mean([clipped(row, max_norm) for row in local], axis=0) if order == "clip_then_average" else reference
    update = first if update is None else np.asarray(update, dtype=float)
    lengths = [float(np.linalg.norm(vector)) for vector in (update, reference)]
    angle = None
    if min(lengths) > 0:
        cosine = float(update @ reference) / lengths[0] / lengths[1]
        angle = float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))
    results = [{"local": row, "update": update, "reference": reference} for row in local]
    facts = {"norm": lengths[0], "reference_norm": lengths[1], "angle_degrees": angle, "ranks_identical": True}
    config = {"order": order, "max_norm": max_norm, "gradients": gradients}
    return run_of(config, results, [[] for _ in local], facts)


def board_run(k=4, *, steps=6, first=2, ranks=(1,), checks=("step", "parameters"), records=None) -> Run:
    """The ranks `ranks` have other parameters from step `first` on, if "parameters" is among the checks."""
    apart, start = "parameters" in checks, steps if first is None else first

    def fingerprint(rank, step):
        return f"of {rank}" if apart and rank in ranks and step >= start else "of most"

    records = records or [
        [Step(step=step, values={"parameters": fingerprint(rank, step)}) for step in range(steps)] for rank in range(k)
    ]
    seen = [{name: list(ranks) for name in checks} if step >= start else {} for step in range(steps)]
    facts = {
        "differences": seen,
        "first_divergent_step": first,
        "divergent_ranks": list(ranks) if first is not None else [],
        "detected_by": list(checks) if first is not None else [],
        "parameter_spread": [0.0] * (steps - 1) + [0.25 * apart],
    }
    return run_of({"steps": steps}, [None] * k, records, facts)


def resume_run(k=4, *, first=None, stop=4, steps=12, without="none", apart=0.1) -> Run:
    losses = [2.3 * 0.9**step for step in range(steps)]
    resumed = [loss + apart * (first is not None and step >= first) for step, loss in enumerate(losses)][stop:]
    config = {"stop_after": stop, "steps": steps, "resume_world_size": max(1, k // 2), "without": without}
    facts = {"losses": losses, "losses_resumed": resumed, "first_divergent_step": first}
    return run_of(config, [None] * k, [[] for _ in range(k)], facts)


def rates_run(k=4, *, times=1, steps=100) -> Run:
    expected, rates = ([(1 + np.cos(np.pi * n * m / steps)) / 2 for n in range(steps + 1)] for m in (1, times))
    facts = {"learning_rates": rates, "learning_rates_expected": expected}
    return run_of({"steps": steps}, [None] * k, [[] for _ in range(k)], facts)


RUNS = {clipping: clipping_run, fault_board: board_run, resume_curves: resume_run, learning_rates: rates_run}


def drawn(figure):
    return {trace.name: trace for trace in figure.data}


def tip(trace):
    return trace.x[1], trace.y[1]


# -- clipping


def test_clipping_first_turns_the_update_and_the_arc_says_by_how_much():
    run = clipping_run(gradients=((30, 40), (0.3, -0.4)))
    figure = clipping.make()
    verdict = clipping.draw(figure, run)
    traces = drawn(figure)
    assert tip(traces["the update"]) == pytest.approx((0.45, 0.2), abs=1e-4)
    assert tip(traces["average, then clip"]) == pytest.approx((0.60767, 0.79419), abs=1e-4)
    assert tip(traces["rank 0, 1"]) == (30, 40) and tip(traces["rank 0, 2"]) == pytest.approx((0.6, 0.8))
    assert traces["labels2"].text == ("0", "1", "29°")
    assert verdict.text == "update right: no, 29° off, length 0.492 instead of 1"
    assert "Same on all ranks" in verdict.html and verdict.good is False


def test_averaging_first_is_right_and_draws_no_arc():
    figure = clipping.make()
    verdict = clipping.draw(figure, clipping_run(gradients=((3, 1), (-1, 2)), order="average_then_clip"))
    assert verdict.good and verdict.html.startswith("<b>Averaged, then clipped:</b> length 1, the limit is 1.")
    assert drawn(figure)["angle"].x == () and drawn(figure)["rank 0, 2"].x == ()


def test_an_angle_of_rounding_is_no_angle():
    run = clipping_run(gradients=((3, 1), (-1, 2)), order="average_then_clip")
    verdict = clipping.draw(clipping.make(), replace(run, facts=run.facts | {"angle_degrees": 8.5e-7}))
    assert verdict.good and verdict.text == "update right: yes, length 1"


def test_the_circle_is_the_limit_and_its_absence_is_said():
    figure = clipping.make()
    clipping.draw(figure, clipping_run(gradients=((3, 1), (-1, 2)), max_norm=2))
    circle = drawn(figure)["limit2"]
    assert np.hypot(circle.x, circle.y) == pytest.approx(np.full(73, 2.0), rel=1e-4)
    clipping.draw(figure, clipping_run(gradients=((3, 1), (-1, 2)), max_norm=500))
    assert drawn(figure)["limit2"].x == ()
    assert "circle: max_norm 500, outside" in figure.layout.annotations[1].text


def test_shards_are_drawn_each_in_its_place():
    figure = clipping.make()
    clipping.draw(figure, clipping_run(gradients=((3,), (4,)), order="clip_each_shard", update=(1, 1)))
    traces = drawn(figure)
    assert [tip(traces[f"rank {rank}, 1"]) for rank in (0, 1)] == [(3, 0), (0, 4)]
    assert [tip(traces[f"rank {rank}, 2"]) for rank in (0, 1)] == [(1, 0), (0, 1)]
    assert tip(traces["the average"]) == (3, 4) and tip(traces["the update"]) == (1, 1)


@pytest.mark.parametrize(("update", "label"), [((3e-6, 4e-6), "almost 0"), ((0, 0), "0")])
def test_an_update_too_short_to_see_is_named(update, label):
    figure = clipping.make()
    run = clipping_run(gradients=((0.3, 0.4), (0.3, 0.4)), order="clip_before_unscale", update=update)
    verdict = clipping.draw(figure, run)
    assert drawn(figure)["labels2"].text == (label,)
    assert ("5.000 × 10⁻⁶" if label != "0" else "length 0 instead") in verdict.html


def test_many_entries_are_drawn_in_the_plane_of_both_updates():
    run = clipping_run(4, n=500)
    figure = clipping.make()
    clipping.draw(figure, run)
    arrows = [np.array(tip(drawn(figure)[name])) for name in ("the update", "average, then clip")]
    lengths = [float(np.linalg.norm(arrow)) for arrow in arrows]
    assert lengths == pytest.approx([run.facts["norm"], run.facts["reference_norm"]], rel=1e-3)
    cosine = arrows[0] @ arrows[1] / np.prod(lengths)
    assert np.degrees(np.arccos(cosine)) == pytest.approx(run.facts["angle_degrees"], abs=0.1)


# -- the fault board


def test_a_rank_that_leaves_is_framed_where_it_leaves():
    figure = fault_board.make()
    verdict = fault_board.draw(figure, board_run())
    traces = drawn(figure)
    assert ["".join(row) for row in traces["board"].text] == ["AAAAAA", "AABBBB", "AAAAAA", "AAAAAA"]
    assert (min(traces["frame"].x[:5]), max(traces["frame"].x[:5])) == (1.5, 2.5)
    assert set(traces["frame"].y[:5]) == {0.5, 1.5} and len(traces["frame"].x) == 6
    assert [list(row).index("≠") for row in traces["checks"].text if "≠" in row] == [2, 2]
    assert verdict.text == "first: step 2, rank 1, by step" and verdict.good is False
    assert verdict.html == "<b>Step 2, rank 1:</b> seen by step and parameters. Sampled parameters end 0.2 apart."


def test_where_all_agree_and_are_wrong_the_sentence_says_so():
    figure = fault_board.make()
    verdict = fault_board.draw(figure, board_run(ranks=(0, 1, 2, 3), first=0, checks=("lr",)))
    assert {letter for row in drawn(figure)["board"].text for letter in row} == {"A"}
    assert verdict.html.startswith("<b>Step 0, all ranks:</b> seen by lr. Comparing parameters finds nothing")


def test_no_difference_is_no_frame():
    figure = fault_board.make()
    verdict = fault_board.draw(figure, board_run(first=None))
    assert drawn(figure)["frame"].x == drawn(figure)["frame2"].x == ()
    assert (verdict.good, verdict.text) == (True, "difference: none in 6 steps")


def test_a_step_that_a_rank_did_not_make_is_empty_and_the_timeout_stands_where_it_came():
    records = [[Step(step=step, values={"parameters": "A"}) for step in range(4)] for _ in range(3)]
    records[1] = [Step(step=step, values={"parameters": "A"}) for step in (0, 1, 3, 4)]
    run = board_run(3, steps=5, checks=("timeout",), records=records)
    run = replace(run, facts=run.facts | {"differences": [{}, {}, {}, {}, {"timeout": [1]}]})
    figure = fault_board.make()
    verdict = fault_board.draw(figure, run)
    traces = drawn(figure)
    assert ["".join(row) for row in traces["board"].text] == ["AAAA–", "AA–AA", "AAAA–"]
    assert set(traces["frame"].x[:4]) == {1.5, 2.5} and set(traces["frame2"].x[:4]) == {3.5, 4.5}
    assert "It came in step 4; until then nothing complained" in verdict.html


def test_of_groups_of_one_size_that_of_the_lowest_rank_is_a():
    assert fault_board.groups(["x", "y", "y", "x"]) == [0, 1, 1, 0]
    assert fault_board.groups(["x", "y", None, "y"]) == [1, 0, None, 0]


def test_the_cells_of_a_long_run_have_no_letters():
    figure = fault_board.make()
    fault_board.draw(figure, board_run(steps=100))
    assert {letter for row in drawn(figure)["board"].text for letter in row} == {""}


# -- resumed curves and learning rates


def test_curves_that_part_are_marked_where_they_do():
    figure = resume_curves.make()
    verdict = resume_curves.draw(figure, resume_run(first=5, without="optimizer"))
    traces = drawn(figure)
    assert traces["part here"].x == (5,) and traces["resumed"].x == tuple(range(4, 12))
    assert traces["difference"].y[0] == resume_curves.FLOOR and traces["difference"].y[1] == pytest.approx(0.1)
    assert (
        verdict.html == "<b>They part at update 5,</b> 1 after resuming, without the optimizer state: up to 0.10 apart."
    )
    assert verdict.text == "goes on alike: no, parts at update 5" and verdict.good is False
    assert "at once" in resume_curves.draw(figure, resume_run(first=4)).html


def test_a_run_that_goes_on_says_how_closely():
    verdict = resume_curves.draw(resume_curves.make(), resume_run())
    assert verdict.good and verdict.text == "goes on alike: yes, 8 updates"
    assert "8 losses, differences below 10⁻¹²" in verdict.html


def test_a_schedule_is_kept_or_not():
    assert learning_rates.draw(learning_rates.make(), rates_run()).text == "on schedule: yes"
    figure = learning_rates.make()
    verdict = learning_rates.draw(figure, rates_run(times=4))
    assert verdict.text == "on schedule: no, ends at 1.00" and verdict.html.startswith(
        "<b>Off schedule</b> from update 0"
    )
    assert [round(drawn(figure)["measured"].y[n], 3) for n in (25, 50, 100)] == [0, 1, 1]


# -- all of them


@pytest.mark.parametrize("module", RUNS)
@pytest.mark.parametrize("k", [1, 2, 4, 8, 32])
def test_every_figure_draws_every_world_size(module, k):
    text = module.show(RUNS[module](k)).to_json()
    assert "bdata" not in text and "NaN" not in text


@pytest.mark.parametrize("module", RUNS)
def test_a_figure_changed_in_one_batch_is_the_figure_made_anew(module):
    """A panel draws inside of batch_update, where what was just written cannot be read back yet."""
    live = go.FigureWidget(module.make())
    for k in (8, 3):
        with live.batch_update():
            module.draw(live, RUNS[module](k))
    fresh = module.make()
    module.draw(fresh, RUNS[module](3))
    assert json.loads(live.to_json()) == json.loads(fresh.to_json())


@pytest.mark.parametrize("module", RUNS)
def test_a_run_loaded_from_a_file_is_drawn_alike(module, tmp_path):
    run = replace(RUNS[module](4), wire=[])
    run.save(tmp_path / "run.json")
    assert module.show(Run.load(tmp_path / "run.json")).to_json() == module.show(run).to_json()


@pytest.mark.parametrize("module", RUNS)
def test_texts_are_large_and_dark_enough(module):
    figure = module.show(RUNS[module](4))
    sizes = [trace.textfont.size for trace in figure.data if trace.textfont.size]
    sizes += [note.font.size for note in figure.layout.annotations]
    assert min(sizes, default=12) >= 12
    assert figure.layout.font.color == INK
