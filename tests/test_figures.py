"""The figures' geometry and words, on numbers made by numpy; what a reader sees is checked in test_browser_panel.py."""

import json
from dataclasses import replace

import numpy as np
import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text
from made_up import equivalence_run

from dpviz.figures import divergence, equivalence, process_cards, tensor_errors, wire_bytes
from dpviz.figures.style import bytes_text, power, rank_colour, rank_dash, step_above
from dpviz.records import Run, Step

ALL = (equivalence, wire_bytes, divergence, process_cards)


def drawn(figure):
    return {trace.name: trace for trace in figure.data}


def tip(trace, number=0):
    return trace.x[3 * number + 1], trace.y[3 * number + 1]


def drifting(k=4, steps=6, *, apart=1.0, first=0) -> Run:
    random = np.random.default_rng(0)
    common = random.normal(size=(steps, 5))
    own = apart * random.normal(size=(k, steps, 5)) * (np.arange(steps) >= first)[:, None]
    records = [
        [Step(step=step, values={"parameters": list(common[step] + own[rank, step])}) for step in range(steps)]
        for rank in range(k)
    ]
    run = equivalence_run(k, fault="none" if apart else "", first_divergent_step=first if apart else None)
    return replace(run, records=records)


def carded(k=4) -> Run:
    results = [
        {
            "pid": 100 + rank,
            "memory_bytes": 62_000_000,
            "before": float(rank + 1),
            "after": k * (k + 1) / 2,
            "printed": f"I am rank {rank}",
        }
        for rank in range(k)
    ]
    return replace(equivalence_run(k), results=results)


RUNS = {equivalence: equivalence_run, wire_bytes: equivalence_run, divergence: drifting, process_cards: carded}


# -- equivalence


def test_equal_gradients_land_on_the_whole_batchs():
    run = equivalence_run(4, 2)
    figure = equivalence.make()
    verdict = equivalence.draw(figure, run)
    traces = drawn(figure)
    assert tip(traces["the whole batch"]) == (0, 1)
    assert tip(traces["the optimizer gets"]) == (0, 1)
    assert (traces["1/k each, end to end"].x[-1], traces["1/k each, end to end"].y[-1]) == (0, 1)
    assert traces["labels"].text == ("0", "1", "2", "3")
    assert (verdict.good, verdict.text) == (True, "gradients equal: yes, 64 samples")
    assert verdict.html.startswith("<b>Equal:</b>") and "4 ranks × 2 micro-batches, 64 samples" in verdict.html


def test_summed_gradients_are_four_times_as_long():
    figure = equivalence.make()
    verdict = equivalence.draw(figure, equivalence_run(4, 1, fault="sum"))
    assert tip(drawn(figure)["the optimizer gets"]) == (0, 4)
    assert figure.layout.yaxis.range[1] > 4
    assert verdict.text == "gradients equal: no, 4 times it, 32 samples" and verdict.good is False
    assert "4 times the whole batch's gradient" in verdict.html


def test_without_an_all_reduce_each_optimizer_gets_its_own():
    run = equivalence_run(4, 1, fault="none")
    figure = equivalence.make()
    verdict = equivalence.draw(figure, run)
    traces = drawn(figure)
    for rank in range(4):
        assert tip(traces["the optimizer gets"], rank) == tip(traces[f"rank {rank}"])
    assert "drifted apart" in verdict.html
    assert "Nothing is sent" in figure.layout.annotations[1].text


def test_more_ranks_than_colours_are_drawn_too():
    figure = equivalence.make()
    equivalence.draw(figure, equivalence_run(12, 1))
    assert len(drawn(figure)["other ranks"].x) == 3 * 4
    equivalence.draw(figure, equivalence_run(2, 1))
    assert drawn(figure)["other ranks"].x == () and drawn(figure)["rank 5"].x == ()


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_strip_of_errors_shows_the_types_tolerance(dtype):
    run = equivalence_run(4, dtype=dtype)
    figure = equivalence.make()
    equivalence.draw(figure, run)
    shapes = {shape.name: shape for shape in figure.layout.shapes}
    assert shapes["tolerance"].x0 == {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2}[dtype]
    assert shapes["rounding"].x1 < shapes["tolerance"].x0
    errors = drawn(figure)["error"]
    assert [float(f"{value:.1e}") for value in run.facts["error_by_tensor"].values()] == list(errors.x)
    assert set(errors.marker.symbol) == {"circle"}


def test_errors_of_zero_infinity_and_nan_stay_on_the_axis():
    errors = {"a": 0.0, "b": float("inf"), "c": float("nan"), "d": 1e-3}
    run = equivalence_run(2, max_rel_error=float("inf"), gradients_equal=False, error_by_tensor=errors)
    figure = equivalence.make()
    verdict = equivalence.draw(figure, run)
    assert drawn(figure)["error"].x == (1e-18, 1e2, 1e2, 1e-3)
    assert drawn(figure)["error"].marker.symbol == ("circle", "x", "x", "x")
    assert "infinite" in verdict.html


def test_long_names_of_tensors_keep_what_tells_them_apart():
    names = [f"blocks.{block}.{layer}.weight" for block in (0, 11) for layer in ("query_key_value", "projection")]
    short = [tensor_errors.short(name) for name in names]
    assert len(set(short)) == 4 and max(map(len, short)) <= tensor_errors.LONGEST_NAME
    assert tensor_errors.short("hidden.weight") == "hidden.weight"


# -- bytes


def test_bytes_name_the_framing_apart():
    run = equivalence_run(4)
    figure = wire_bytes.make()
    verdict = wire_bytes.draw(figure, run)
    n = run.facts["gradient_bytes"]
    traces = drawn(figure)
    assert traces["formula"].y[0] == int(1.5 * n)
    assert traces["formula and framing"].y[0] == int(1.5 * n) + 576 * 3
    assert "framing 1.73 kB" in figure.layout.annotations[0].text
    assert verdict.good and verdict.text == "bytes as predicted: yes"


def test_bytes_that_are_not_as_predicted_say_so():
    run = equivalence_run(4, wire_bytes=[20_000, 20_000, 20_000, 10_000])
    figure = wire_bytes.make()
    assert wire_bytes.draw(figure, run).good is False
    assert "Each rank sent 10.0 to 20.0 kB" in figure.layout.annotations[0].text


def test_one_rank_sends_nothing():
    figure = wire_bytes.make()
    verdict = wire_bytes.draw(figure, equivalence_run(1))
    assert verdict.good and "no one to send to" in figure.layout.annotations[0].text


# -- divergence


def test_ranks_that_drift_apart_are_seen_from_their_first_update():
    figure = divergence.make()
    verdict = divergence.draw(figure, drifting(3, 8, first=2))
    spread = drawn(figure)["spread"]
    assert spread.y[:2] == (divergence.FLOOR,) * 2 and spread.y[2] > 1e-3
    assert verdict.text == "ranks identical: no, from update 3" and verdict.good is False


def test_ranks_that_only_started_apart_stay_apart():
    common = np.random.default_rng(0).normal(size=(6, 5))
    records = [
        [Step(step=step, values={"parameters": list(common[step] + 0.5 * rank)}) for step in range(6)]
        for rank in range(3)
    ]
    run = replace(equivalence_run(3, fault="none", first_divergent_step=0), records=records)
    verdict = divergence.draw(divergence.make(), run)
    assert "stay apart</b>, by as much after 6 updates as after the first" in verdict.html and verdict.good is False


def test_ranks_that_agree_share_one_label():
    figure = divergence.make()
    verdict = divergence.draw(figure, drifting(4, 5, apart=0))
    assert drawn(figure)["labels"].text == (" all",)
    assert set(drawn(figure)["spread"].y) == {divergence.FLOOR}
    assert verdict.good and verdict.text == "ranks identical: yes, 5 updates"


def test_a_run_without_sampled_parameters_is_refused_with_a_sentence():
    run = replace(equivalence_run(2), records=[[Step(step=0)], [Step(step=0)]])
    with pytest.raises(ValueError, match=r"Yield Step\(step=\.\.\., loss=\.\.\., values="):
        divergence.draw(divergence.make(), run)
    with pytest.raises(ValueError, match="at least one step"):
        divergence.draw(divergence.make(), replace(run, records=[[], []]))


# -- process cards


def test_cards_say_who_holds_what():
    figure = process_cards.make()
    verdict = process_cards.draw(figure, carded(4))
    traces = drawn(figure)
    assert traces["who"].text[2] == "PID 102 · 62.0 MB"
    assert traces["held"].text[:4] == tuple(f"holds <b>{n}</b>" for n in (1, 2, 3, 4))
    assert set(traces["held"].text[4:]) == {"holds <b>10</b>"}
    assert "I am rank 3" in traces["words"].text
    assert verdict.text == "4 ranks, 4 processes, same after: yes"


def test_cards_shorten_and_escape_what_was_printed():
    run = carded(8)
    run.results[0]["printed"] = ["<b>bold</b> and long enough to be cut", "2", "3", "4", "5"]
    figure = process_cards.make()
    process_cards.draw(figure, run)
    text = next(text for text in drawn(figure)["words"].text if "lt;" in text)
    assert "<b>" not in text and "… 2 more" in text


def test_cards_do_without_what_was_not_returned():
    run = replace(carded(2), results=[{"pid": 1}, {"pid": 2}])
    verdict = process_cards.draw(process_cards.make(), run)
    assert verdict.text == "2 ranks, 2 processes" and verdict.good is None


# -- all of them


@pytest.mark.parametrize("module", ALL)
@pytest.mark.parametrize("k", [1, 2, 4, 8, 32])
def test_every_figure_draws_every_world_size(module, k):
    figure = module.show(RUNS[module](k))
    text = figure.to_json()
    assert "bdata" not in text, "numpy arrays become base64, which nobody can read in a notebook's file"
    assert f"{k} rank" in figure.layout.title.subtitle.text


@pytest.mark.parametrize("module", ALL)
def test_a_figure_changed_is_the_figure_made_anew(module):
    changed = module.make()
    module.draw(changed, RUNS[module](8))
    module.draw(changed, RUNS[module](3))
    fresh = module.make()
    module.draw(fresh, RUNS[module](3))
    assert json.loads(changed.to_json()) == json.loads(fresh.to_json())


@pytest.mark.parametrize("module", ALL)
def test_a_figure_changed_in_one_batch_is_the_figure_made_anew(module):
    assert_redrawn_as_made_anew(module, [RUNS[module](k) for k in (8, 3)])


def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path):
    run = equivalence_run(4)
    run.save(tmp_path / "run.json")
    assert equivalence.show(Run.load(tmp_path / "run.json")).to_json() == equivalence.show(run).to_json()


@pytest.mark.parametrize("module", ALL)
def test_no_text_is_smaller_than_twelve(module):
    assert smallest_text(module.show(RUNS[module](4))) >= 12


def test_colours_belong_to_ranks_and_never_stand_alone():
    looks = [(rank_colour(rank), rank_dash(rank)) for rank in range(32)]
    assert len(set(looks)) == 32


def test_numbers_are_written_for_readers():
    assert [power(x) for x in (0, 3.14e-16, 2.6, 0.02, 4096, float("nan"))] == [
        "0",
        "3 × 10⁻¹⁶",
        "2.6",
        "0.02",
        "4096",
        "not a number",
    ]
    assert [bytes_text(x) for x in (0, 576, 14048, 999_600, 62_000_000)] == [
        "0 B",
        "576 B",
        "14.0 kB",
        "1.00 MB",
        "62.0 MB",
    ]
    assert [step_above(x) for x in (0, 0.3, 1, 1.2, 70)] == [1, 0.5, 1, 2, 100]
