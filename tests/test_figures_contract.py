"""The contract as a table: a tick, a violation or a dash a category, and the first violation as the verdict."""

import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text

from dpviz.experiments.contract import Config, experiment
from dpviz.figures import contract
from dpviz.figures.style import NO, SOFT_INK, YES
from dpviz.ranks.launch import launch


@pytest.fixture(scope="module")
def runs():
    faults = ("none", "overflow_on_one_rank", "same_dropout_mask")
    return {fault: launch(experiment, Config(fault=fault, fault_rank=2), world_size=4) for fault in faults}


def drawn(run):
    figure = contract.make()
    return figure, contract.draw(figure, run)


def test_a_clean_run_has_a_tick_wherever_there_was_something_to_check(runs):
    figure, verdict = drawn(runs["none"])
    names, recorded, checked = figure.data[0].cells.values
    assert names[0] == "topology" and len(names) == len(recorded) == 8
    assert [one[0] for one in checked] == ["✓"] * 7 + ["–"]
    assert figure.data[0].cells.font.color[2] == [YES] * 7 + [SOFT_INK]
    assert (verdict.text, verdict.good) == ("kept: 20 checks", True)


def test_a_fault_stands_in_its_category_and_in_the_verdict(runs):
    figure, verdict = drawn(runs["overflow_on_one_rank"])
    checked = dict(zip(*(figure.data[0].cells.values[i] for i in (0, 2)), strict=True))
    assert checked["update"] == "✗ step 3: rank 2 had loss scale 1024, the others 2048; then step"
    assert checked["loss"] == "✓ tokens"
    assert figure.data[0].cells.font.color[2][5] == NO
    assert (verdict.text, verdict.good) == ("broken: step 3, rank 2, by scaler", False)
    assert verdict.html == (
        "<b>Broken at step 3, rank 2:</b> update, by the check <i>scaler</i>; 6 more checks see it."
    )
    _, verdict = drawn(runs["same_dropout_mask"])
    assert verdict.text == "broken: step 0, every rank, by dropout"
    assert "no other check sees it" in verdict.html


def test_runs_of_other_questions_can_be_shown_too():
    run = launch(lambda config: None, {"lr": 0.5}, world_size=2)
    figure, verdict = drawn(run)
    assert verdict.text.startswith("kept: ")
    assert figure.data[0].cells.values[1][1] == "not recorded"


def test_it_is_redrawn_in_place_and_readable(runs):
    assert_redrawn_as_made_anew(contract, [*runs.values(), runs["none"]])
    assert smallest_text(contract.show(runs["none"])) >= 12
