"""The figures of lesson 07: losses, noise against its formula, several runs compared."""

import dataclasses
import math

import pytest
from figure_checks import assert_redrawn_as_made_anew
from made_up import environment

from dpviz.figures import large_batch
from dpviz.records import Run

FACTS = {
    "losses": [2.3, 1.2, 0.6, 0.3],
    "global_batch": 64,
    "lr": 0.8,
    "steps_to_target": 3,
    "samples_to_target": 192,
    "gradient_noise": {4: 1.0, 8: 0.7, 16: 0.5, 32: 0.36},
    "noise_exponent": -0.49,
    "noise_scale": 88.8,
    "diverged": False,
}
CONFIG = {"target_loss": 0.5, "optimizer": "sgd", "scaling": "linear", "warmup_fraction": 0.25}


def run(**facts):
    return Run(
        experiment="large_batch",
        config=CONFIG,
        results=[{}] * 4,
        records=[[]] * 4,
        wire=[],
        environment=environment(4),
        facts={**FACTS, **facts},
    )


def traces(figure):
    return {trace.name: trace for trace in figure.data}


def test_losses_stand_over_samples_and_the_noise_beside_its_law():
    figure = large_batch.make()
    verdict = large_batch.draw(figure, run())
    drawn = traces(figure)
    assert drawn["loss"].x == (64, 128, 192, 256) and drawn["loss"].y == (2.3, 1.2, 0.6, 0.3)
    assert drawn["noise"].x == drawn["formula"].x == (4, 8, 16, 32)
    assert drawn["formula"].y == pytest.approx([1 / math.sqrt(b / 4) for b in (4, 8, 16, 32)], rel=1e-4)
    assert verdict.text == "batch 64: target after 3 updates"
    assert "192 samples" in verdict.html and "89" in verdict.html
    assert figure.layout.xaxis.range[1] >= 256


def test_a_run_that_diverges_is_said_to_and_stays_drawable():
    figure = large_batch.make()
    lost = run(losses=[2.3, 9.0, math.nan, math.inf], diverged=True, steps_to_target=None)
    verdict = large_batch.draw(figure, lost)
    assert verdict.good is False and verdict.html.startswith("<b>It diverges</b>")
    assert all(math.isfinite(value) for value in traces(figure)["loss"].y)


def test_a_target_that_is_not_reached_is_neither_good_nor_bad():
    verdict = large_batch.draw(large_batch.make(), run(steps_to_target=None))
    assert verdict.good is None and "not reached</b> in 4 updates" in verdict.html


def test_runs_are_compared_with_a_line_each_and_a_point_where_the_target_was_reached():
    runs = {"small": run(), "large": run(global_batch=256, steps_to_target=None)}
    figure = large_batch.compare(runs)
    assert [trace.name for trace in figure.data[:2]] == ["small", "large"]
    assert figure.data[0].line.dash != figure.data[1].line.dash
    assert figure.data[2].x == (64,) and figure.data[2].y == (3,)
    assert len(large_batch.compare({"none": runs["large"]}).data) == 1


def test_too_many_runs_cannot_be_told_apart():
    with pytest.raises(ValueError, match="7 runs were given"):
        large_batch.compare({str(number): run() for number in range(7)})


def test_the_figure_of_one_run_has_its_verdict_as_title():
    shown = large_batch.show(dataclasses.replace(run()))
    assert "Target after 3 updates" in shown.layout.title.text


def test_a_panels_figure_is_the_one_made_anew_after_each_draw():
    diverged = run(losses=[2.3, 9.0, math.inf], diverged=True, steps_to_target=None)
    assert_redrawn_as_made_anew(
        large_batch,
        (run(), diverged, run(global_batch=512, gradient_noise={4: 30.0, 8: 20.0, 16: 15.0, 32: 11.0}), run()),
    )
