"""The map of ZeRO stages and ranks: what fits, what to take, and recorded runs in their cells."""

from dataclasses import replace
from pathlib import Path

import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text

from dpviz.figures import stage_map
from dpviz.planner import KS, Config
from dpviz.records import Run

RECORDED = [Run.load(path) for path in sorted((Path(__file__).parents[1] / "lessons/recorded").glob("zero_*.json"))]


def drawn(plans, runs=()):
    figure = stage_map.make()
    verdict = stage_map.draw(figure, plans, runs=runs)
    return {trace.name: trace for trace in figure.data}, figure.layout, verdict


def test_the_courses_numbers_stand_in_their_cells():
    cells = drawn(Config().plans())[0]["cells"]
    at_8 = KS.index(8)
    assert [row[at_8].split("<")[0] or row[at_8][3:].split("<")[0] for row in cells.text] == [
        "✗ 112 GB",
        "38.5 GB",
        "26.2 GB",
        "14 GB",
    ]
    assert [row[at_8] > 0 for row in cells.z] == [False, True, True, True]  # what does not fit is grey, and says so
    assert "sends 24.5 GB a step" in cells.hovertext[1][at_8]


def test_the_stage_to_take_is_framed_in_each_column_and_told():
    plans = Config(activations_gb=40).plans()
    _, layout, verdict = drawn(plans)
    framed = {column: round(shape.y0 + 0.47) for column, shape in enumerate(layout.shapes) if shape.visible}
    assert framed == {KS.index(k): plan.choice for k, plan in plans.items() if plan.choice is not None}
    assert verdict.text == "nothing fits at k = 1 to 2; ZeRO-3 at k = 4; ZeRO-2 at k = 8; ZeRO-1 at k = 16 to 2,048"
    assert verdict.html.startswith("<b>Take ZeRO-3</b> at k = 4") and verdict.html.endswith("fits</b> at k = 1 to 2.")


def test_where_nothing_fits_nothing_is_framed():
    _, layout, verdict = drawn(Config(params=5e13).plans())
    assert not any(shape.visible for shape in layout.shapes)
    assert verdict.text == "nothing fits" and verdict.good is False


def test_the_more_of_a_step_is_sending_the_yellower():
    fast, slow = (drawn(Config(link_gbps=gbps).plans())[0]["cells"].z[1][3] for gbps in (1e5, 1.0))
    assert (fast, slow) == (1, 4)


def test_recorded_runs_stand_in_the_cells_of_their_stage_and_ranks():
    traces, layout, _ = drawn(Config().plans(), RECORDED)
    marks = traces["recorded"]
    assert [round(y) for y in marks.y] == [0, 1, 2, 3] and {round(x) for x in marks.x} == {KS.index(4)}
    assert "2 hosts" in marks.hovertext[3] and "4,238,858 parameters" in marks.hovertext[3]
    assert "recorded" in layout.annotations[0].text
    shown = stage_map.over(RECORDED).show(Config().plans())
    assert "measured: 4 ranks on 2 hosts" in shown.layout.title.subtitle.text


def test_a_recorded_run_without_a_column_is_named():
    plans = Config().plans()
    del plans[4]
    assert list(drawn(plans, RECORDED)[0]["recorded"].x) == []
    assert "Recorded at k = 4, which has no column." in stage_map.over(RECORDED).notes(plans)


def test_what_cannot_be_drawn_is_a_sentence():
    with pytest.raises(ValueError, match="a run of fsdp has no ZeRO stage"):
        stage_map.over([replace(RECORDED[0], experiment="fsdp")])
    with pytest.raises(ValueError, match="9 numbers of ranks were given"):
        drawn({k: Config().plan() for k in range(9)})


def test_no_text_is_small_and_nothing_is_kept_as_an_array():
    figure = stage_map.show(Config().plans(), runs=RECORDED)
    assert smallest_text(figure) >= 12 and "bdata" not in figure.to_json()


def test_a_map_is_redrawn_as_made_anew():
    settings = (Config(), Config(params=5e12), Config(activations_gb=40, link_gbps=1.0), Config())
    assert_redrawn_as_made_anew(stage_map.over(RECORDED), [config.plans() for config in settings])
