"""Layers x time: when each is fetched, whole and used, what is in memory, and the sentence."""

import json

import pytest
from figure_checks import assert_redrawn_as_made_anew
from made_up_memory import fsdp_run

from dpviz.figures import fsdp_runs, layers_in_time
from dpviz.records import Event, Run


def drawn(run, **more):
    figure = layers_in_time.make(len(run) if isinstance(run, list) else 1)
    verdict = layers_in_time.draw(figure, run, **more)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def note(figure, name):
    return next(note.text for note in figure.layout.annotations if note.name == name)


def test_a_layer_is_fetched_whole_and_used_in_its_row():
    traces, figure, _ = drawn(fsdp_run())
    for name, base, long in (("coming ", (0, 12, 24), 10), ("whole ", (10, 22, 34), 2), ("forward ", (10, 22, 34), 2)):
        assert traces[name].base[:3] == base and set(traces[name].x[:3]) == {long} and traces[name].y[:3] == (0, 1, 2)
    assert traces["backward "].y == traces["scatter "].y == (2, 1, 0)
    assert traces["scatter "].base[0] == 48 and "layers.2" in traces["scatter "].hovertext[0]
    assert figure.layout.yaxis.ticktext == ("layers.0", "layers.1", "layers.2") and figure.layout.yaxis.range[0] > 2


def test_lanes_below_tell_what_the_rank_does_at_once():
    traces, figure, _ = drawn(fsdp_run())
    assert figure.layout.yaxis2.ticktext == ("computes", "gathers", "scatters")
    for kind, lane in (("forward", 0), ("backward", 0), ("coming", 1), ("scatter", 2)):
        assert set(traces[f"{kind} 2"].y) == {lane} and traces[f"{kind} 2"].base == traces[f"{kind} "].base


def test_the_area_counts_the_bytes_of_layers_that_are_whole_or_on_their_way():
    run = fsdp_run(layers=2, prefetch=1)
    moments, held = fsdp_runs.whole_bytes(run.results[0])
    assert moments[:4] == pytest.approx([0, 10, 12, 20]) and held[:4] == [(0, 400), (400, 400), (0, 400), (400, 400)]
    traces, figure, _ = drawn(run)
    assert traces["whole 3"].y[:3] == (0, 400, 0) and traces["coming 3"].y[:3] == (400, 400, 400)
    assert traces["whole 3"].stackgroup == traces["coming 3"].stackgroup and figure.layout.yaxis3.range[1] >= 800
    assert figure.layout.yaxis3.ticktext[-1] == "1 kB"


def test_a_rank_is_drawn_as_it_saw_it():
    run = fsdp_run()
    run.results[1] = json.loads(json.dumps(run.results[1]))
    run.results[1]["timeline"][0]["start_s"] = -0.003
    traces, figure, _ = drawn(run, rank=1)
    assert traces["coming "].base[0] == -3 and figure.layout.xaxis.range == figure.layout.xaxis3.range == (-3, 100)
    assert "rank 1" in note(figure, "key") and drawn(run)[1].layout.xaxis.range[0] == 0


def test_two_settings_share_their_axes_and_are_named_by_what_differs():
    _, figure, _ = drawn([fsdp_run(), fsdp_run(wrap="whole_model")])
    assert figure.layout.xaxis.range == figure.layout.xaxis4.range
    assert figure.layout.yaxis3.range == figure.layout.yaxis6.range and figure.layout.yaxis3.range[1] >= 1200
    assert note(figure, "title 0").startswith("<b>each layer</b>") and "<b>whole model</b>" in note(figure, "title 1")
    assert "step 100 ms (90 to 120)" in note(figure, "title 0")
    assert figure.layout.yaxis4.ticktext == ("the rest",) and set(figure.layout.yaxis5.ticktext) == {""}


def test_a_setting_is_told_in_full_where_nothing_differs():
    alone = "k = 2, by hand, each layer, freed after forward, prefetch 0, K = 1, no link"
    assert fsdp_runs.settings([fsdp_run()]) == [alone] and fsdp_runs.settings([fsdp_run()] * 2) == [alone] * 2
    pair = fsdp_runs.settings([fsdp_run(reshard=False), fsdp_run(K=4)])
    assert pair == ["kept after forward, K = 1", "freed after forward, K = 4, reduced each time"]


def test_of_many_layers_some_are_named():
    _, figure, _ = drawn(fsdp_run(layers=30))
    assert len(figure.layout.yaxis.tickvals) == 10 and figure.layout.yaxis.ticktext[1] == "layers.3"


@pytest.mark.parametrize(
    ("runs", "html", "text", "good"),
    [
        (
            fsdp_run(),
            "<b>No gathering is hidden:</b> 60 of 60 ms are waited; whole at most 33 %.",
            "at most 33 % of the model whole; trains as DDP: yes",
            None,
        ),
        (
            fsdp_run(prefetch=1),
            "<b>40 % of the gathering is hidden:</b> 36 of 60 ms are waited; whole at most 67 %.",
            "at most 67 % of the model whole; trains as DDP: yes",
            None,
        ),
        (
            [fsdp_run(), fsdp_run(prefetch=1)],
            "<b>Hidden: 0 % and 40 % of the gathering</b>; steps of 100 and 100 ms.",
            "at most 33 % and 67 % of the model whole; trains as DDP: yes",
            None,
        ),
        (
            fsdp_run(wrap="whole_model", hidden_fraction=0.03),
            "<b>No gathering is hidden:</b> 60 of 60 ms are waited; whole at most 100 %.",
            "at most 100 % of the model whole; trains as DDP: yes",
            None,
        ),
        (
            fsdp_run(max_difference_from_ddp=0.02),
            "<b>Not the same training:</b> losses differ by 0.02 from DDP's.",
            "trains as DDP: no",
            False,
        ),
    ],
)
def test_the_verdict(runs, html, text, good):
    verdict = drawn(runs)[2]
    assert (verdict.html, verdict.text, verdict.good) == (html, text, good)


def test_a_panels_figure_is_the_one_made_anew_after_each_draw():
    assert_redrawn_as_made_anew(
        layers_in_time,
        (fsdp_run(), fsdp_run(8, layers=20, prefetch=1), fsdp_run(wrap="whole_model"), fsdp_run(layers=1)),
    )


def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path):
    run = fsdp_run(prefetch=1)
    text = layers_in_time.show(run, fsdp_run()).to_json()
    assert "bdata" not in text and "NaN" not in text
    run.save(tmp_path / "run.json")
    assert layers_in_time.show(Run.load(tmp_path / "run.json"), fsdp_run()).to_json() == text


def test_events_are_read_as_well_as_what_a_file_makes_of_them():
    run = fsdp_run()
    as_events = [Event(**event) for event in run.results[0]["timeline"]]
    assert fsdp_runs.spans(run.results[0] | {"timeline": as_events}) == fsdp_runs.spans(run.results[0])
