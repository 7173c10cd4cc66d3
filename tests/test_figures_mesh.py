"""The mesh as a picture: where ranks stand, what is struck out of the product, which group is lit, and the verdict."""

import dataclasses

import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text
from made_up import environment

from dpviz.figures import mesh as figure_of_mesh
from dpviz.figures import mesh_grid
from dpviz.questions import mesh as question
from dpviz.records import Run, Wire
from dpviz.theory import mesh


def mesh_run(**fields) -> Run:
    """A run as it should be, made without ranks: `facts` are the question's own."""
    config = question.Config(**{"tp": 1, "pp": 1, **fields})
    world = config.implied_world_size()
    lists = {axis: mesh.groups(config.axes(), axis) for axis in config.axes()} | config.more_groups()
    results = []
    for rank in range(world):
        groups = {axis: next(group for group in of_axis if rank in group) for axis, of_axis in lists.items()}
        at = {axis: group.index(rank) for axis, group in groups.items()}
        mine, part = config.accumulation_steps * config.micro_batch, question.LENGTH // config.cp
        tokens = range(at["cp"] * part, (at["cp"] + 1) * part)
        one = {
            "read": [[sample, token] for sample in range(at["dp"] * mine, (at["dp"] + 1) * mine) for token in tokens],
            "at": at,
            "groups": groups,
            "sent": dict.fromkeys(groups, 0),
            "bytes": {},
            "parameters": 5000,
            "whole_parameters": 20000,
            "differences": [1e-9, 1e-8, 1e-3],
            "losses": [2.0] * 3,
            "seconds": [0.1] * 3,
        }
        one["sent"] = {axis: sum(sent) for axis, sent in question.predict(config, one).items()}
        results.append(one)
    run = Run(
        experiment="mesh",
        config=dataclasses.asdict(config),
        results=results,
        records=[[]] * world,
        wire=[Wire()] * world,
        environment=environment(world),
    )
    return dataclasses.replace(run, facts=question.Config.facts(run))


def drawn(run):
    figure = figure_of_mesh.make()
    verdict = figure_of_mesh.draw(figure, run)
    notes = {note.name: note.text for note in figure.layout.annotations if note.name}
    return {trace.name: trace for trace in figure.data}, figure, notes, verdict


CASE_20 = {"dp": 4, "tp": 2, "pp": 2}


def test_the_product_has_d_b_and_k_and_strikes_the_others_out():
    _, _, notes, verdict = drawn(mesh_run(**CASE_20))
    assert "D 4 · B 2 · K 8 = 64" in notes["product"]
    assert [f"<s>{one}</s>" in notes["product"] for one in ("TP 2", "PP 2", "CP 1", "D 4")] == [True, True, True, False]
    assert "64 different samples, 1,024 tokens; EP lies inside D" in notes["product"]
    assert "64 samples a step, not 256:" in verdict.html and verdict.good
    assert verdict.text == "global batch 64, counted 64, world * B * K 256; as one process: yes"


def test_experts_with_an_axis_of_their_own_are_struck_out_too():
    _, _, notes, _ = drawn(mesh_run(dp=2, tp=2, ep=4, expert_axis="separate"))
    assert "<s>EP 4</s>" in notes["product"] and "lies inside" not in notes["product"]
    _, _, notes, _ = drawn(mesh_run(dp=4, ep=2))
    assert "<s>EP" not in notes["product"] and "EP 2 lies inside D" in notes["product"]


def test_a_replica_is_a_card_and_its_ranks_have_one_colour_by_data_and_another_by_parameters():
    traces, *_ = drawn(mesh_run(**CASE_20))
    assert len(traces["cards"].x) == 4
    data, parameters = (traces[f"by {kind}"].marker.color for kind in mesh_grid.COLOURS)
    assert len(set(data)) == len(set(parameters)) == 4
    assert data[0] == data[1] == data[8] == data[9]  # tp and pp read the same
    assert parameters[0] == parameters[2] == parameters[4] == parameters[6]  # dp holds the same
    assert traces["by data"].visible is None and traces["by parameters"].visible is False


def test_sixteen_of_a_kind_are_told_apart_by_hatching_too():
    traces, *_ = drawn(mesh_run(dp=16, accumulation_steps=2))
    marker = traces["by data"].marker
    assert len(set(zip(marker.color, marker.pattern.shape, strict=True))) == 16


@pytest.mark.parametrize(
    ("axis", "lit"), [("dp", [0, 2, 4, 6]), ("tp", [0, 1]), ("pp", [0, 8]), ("cp", [0]), ("ep", [0, 2])]
)
def test_a_button_lights_the_group_of_rank_0(axis, lit):
    run = mesh_run(**CASE_20, ep=2)
    traces, figure, *_ = drawn(run)
    assert [r for r, width in enumerate(traces[f"light {axis}"].marker.line.width) if width] == lit
    button = next(one for one in figure.layout.updatemenus[0].buttons if one.label == axis)
    shown = dict(zip(button.args[1], button.args[0]["visible"], strict=True))
    assert [figure.data[number].name for number, visible in shown.items() if visible] == [f"light {axis}"]


def test_hovering_names_the_groups_of_a_rank():
    traces, *_ = drawn(mesh_run(**CASE_20))
    text = traces["by data"].hovertext[9]
    assert "rank 9" in text and "dp group: 9, 11, 13, 15" in text and "tp group: 8, 9" in text
    assert "5,000 of 20,000 parameters" in text and "cp group" not in text


def test_bytes_are_those_of_the_rank_that_sends_most():
    run = mesh_run(**CASE_20)
    run.facts["wire_bytes_by_group"]["dp"][3] = 99_999
    traces, figure, *_ = drawn(run)
    places = dict(zip(figure.layout.yaxis2.ticktext, figure.layout.yaxis2.tickvals, strict=True))
    assert list(places) == ["tp, 2", "cp, 1", "dp, 4", "pp, 2"]
    sent = dict(zip(traces["sent"].y, traces["sent"].x, strict=True))
    assert sent[places["dp, 4"]] == 99_999 and sent[places["cp, 1"]] == 0
    _, figure, *_ = drawn(mesh_run(dp=4, shard=2))
    assert figure.layout.yaxis2.ticktext == ("tp, 1", "cp, 1", "shard, 2", "replicate, 2", "pp, 1")


def test_the_verdict_says_what_is_wrong():
    run = mesh_run(**CASE_20)
    run.facts["distinct_samples"] = 256
    assert "Not the batch that was meant:</b> 256 different samples, not 64" in drawn(run)[3].html
    run = mesh_run(**CASE_20)
    run.facts["as_one_process"] = False
    assert drawn(run)[3].good is False
    assert "all 4 ranks" in drawn(mesh_run(dp=4))[3].html
    assert "one rank reads them all" in drawn(mesh_run(dp=1))[3].html


def test_it_is_redrawn_as_made_anew_and_its_text_is_large_enough():
    runs = [mesh_run(**CASE_20), mesh_run(dp=1), mesh_run(dp=2, cp=4, ep=2), mesh_run(dp=4, shard=2)]
    assert_redrawn_as_made_anew(figure_of_mesh, runs)
    assert smallest_text(figure_of_mesh.show(runs[0])) >= 12
