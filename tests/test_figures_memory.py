"""What a rank holds and what it sends, as figures: ZeRO's costs, stages against ranks, memory over a step."""

import pytest
from figure_checks import assert_redrawn_as_made_anew
from made_up_memory import FRAMING, all_stages, fsdp_run, zero_run

from dpviz.figures import kinds, memory_over_time, stages_by_ranks, zero_costs
from dpviz.records import Run
from dpviz.theory import memory


def drawn(module, run):
    figure = module.make()
    verdict = module.draw(figure, run)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def note(figure, name):
    return next(note for note in figure.layout.annotations if note.name == name)


# -- sizes


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (38.5e9, "38.5 GB"), (80e12, "80 TB"), (1.234e6, "1.23 MB")]
)
def test_sizes_are_written_with_a_decimal_prefix(count, text):
    assert kinds.size_text(count) == text


@pytest.mark.parametrize(("count", "text"), [(7e9, "7B"), (5e12, "5T"), (71114, "71.1k"), (3, "3")])
def test_models_are_named_by_their_parameters(count, text):
    assert kinds.model_text(count) == text


def test_an_axis_says_its_unit_and_ends_at_its_top():
    ticks, unit = kinds.bytes_axis(1.6e6)
    assert (ticks["range"], ticks["ticktext"], unit) == ([0, 1.6e6], ["0", "0.4", "0.8", "1.2", "1.6"], "MB")


# -- zero_costs


def test_what_was_measured_is_full_and_what_was_not_is_pale():
    traces, _, _ = drawn(zero_costs, zero_run(2))
    assert traces["gradients"].x == (2,) and traces["gradients by formula"].x == (0, 1, 3)
    assert traces["sent"].x == (2,) and traces["sent by formula"].x == (0, 1, 3)
    traces, _, _ = drawn(zero_costs, all_stages())
    assert traces["gradients"].x == (0, 1, 2, 3) and traces["gradients by formula"].x == ()


def test_bars_stack_what_the_fullest_rank_holds_kind_by_kind():
    run = zero_run(2, mixed_precision=True)
    run.facts["bytes_per_rank"][3] = {kind: 2 * count for kind, count in run.facts["formula_bytes"].items()}
    traces, _, _ = drawn(zero_costs, run)
    for kind, count in run.facts["formula_bytes"].items():
        assert traces[kind].y == (2 * count,)


def test_the_totals_are_told_also_at_the_size_of_the_scaled_model():
    _, figure, _ = drawn(zero_costs, all_stages(k=8, mixed_precision=True))
    for stage, scaled in enumerate((112, 38.5, 26.25, 14)):
        assert f">{scaled} GB<" in note(figure, f"total {stage}").text
    assert "grey: of a 7B model" in note(figure, "held").text
    _, figure, _ = drawn(zero_costs.Scaled(params=13e9, memory_gb=40), all_stages(k=8, mixed_precision=True))
    assert ">48.75 GB<" in note(figure, "total 2").text and "a card of 40 GB" in note(figure, "card").text
    assert "grey: of a 13B model" in note(figure, "held").text


def test_the_cards_line_stands_where_the_scaled_model_would_fill_it():
    traces, _, _ = drawn(zero_costs, zero_run(0, N=70_000))
    assert traces["card"].y == pytest.approx([80e9 / 7e9 * 70_000] * 2)


def test_traffic_is_told_in_units_of_dp_without_the_headers():
    traces, figure, _ = drawn(zero_costs, all_stages(N=1000, K=2))
    assert [note(figure, f"total2 {s}").text[3:7] for s in memory.STAGES] == ["1.00", "1.00", "1.50", "3.00"]
    base = 2 * 3 / 4 * 4000
    assert traces["once"].y == (base, base) and traces["one and a half"].y == (1.5 * base,) * 2
    assert traces["sent"].y[0] == base + FRAMING and traces["predicted2"].y[:2] == (base + FRAMING,) * 2


def test_one_rank_sends_nothing():
    traces, figure, verdict = drawn(zero_costs, all_stages(k=1))
    assert traces["sent"].y == (0,) * 4 and "one rank has no one" in note(figure, "sent").text
    assert verdict.html == "<b>ZeRO-3: 100 % of DP's memory</b>; ZeRO-2: 100 %."


@pytest.mark.parametrize(
    ("run", "html", "text", "good"),
    [
        (
            all_stages(),
            "<b>ZeRO-3: 25 % of DP's memory for 1.50 × its traffic</b>; ZeRO-2: 43.8 % for 1.00 ×.",
            "DP 100 % for 1.0 ×, ZeRO-1 62.5 % for 1.0 ×, ZeRO-2 43.8 % for 1.0 ×, ZeRO-3 25 % for 1.5 ×; "
            "as predicted: yes",
            True,
        ),
        (
            zero_run(3),
            "<b>ZeRO-3: 25 % of DP's memory for 1.50 × its traffic</b>.",
            "ZeRO-3 25 % for 1.5 ×; as predicted: yes",
            True,
        ),
        (
            zero_run(3, held=memory.model_state(70_000, 4, stage=0)._asdict()),
            "<b>Not divided as it should be:</b> under ZeRO-3 a rank holds 1.12 MB, not 280 kB.",
            "ZeRO-3: bytes as predicted: no",
            False,
        ),
        (
            zero_run(1, max_difference_from_stage_0=0.02),
            "<b>Not the same training:</b> under ZeRO-1 losses differ by 0.02 from stage 0.",
            "ZeRO-1: trains as stage 0: no",
            False,
        ),
    ],
)
def test_the_verdict_on_costs(run, html, text, good):
    _, _, verdict = drawn(zero_costs, run)
    assert (verdict.html, verdict.text, verdict.good) == (html, text, good)


def test_a_kind_held_in_place_of_another_is_not_as_predicted():
    held = zero_run(2).facts["formula_bytes"] | {"parameters": 70_000, "gradients": 280_000}
    assert drawn(zero_costs, zero_run(2, held=held))[2].good is False


def test_runs_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="one run of the experiment zero for each stage"):
        zero_costs.show([zero_run(1), zero_run(1)])
    with pytest.raises(ValueError, match="Change the stage only"):
        zero_costs.show([zero_run(1), zero_run(2, N=80_000)])


def test_costs_are_redrawn_as_made_anew(tmp_path):
    runs = [
        zero_run(2),
        all_stages(k=8),
        zero_run(0, k=1),
        zero_run(3, N=10**7, mixed_precision=True, K=3),
        zero_run(2),
    ]
    assert_redrawn_as_made_anew(zero_costs, runs)
    text = zero_costs.show(runs[0]).to_json()
    assert "bdata" not in text and "NaN" not in text
    runs[0].save(tmp_path / "run.json")
    assert zero_costs.show(Run.load(tmp_path / "run.json")).to_json() == text


# -- stages_by_ranks


def test_lines_are_the_formula_and_points_what_was_measured():
    runs = [zero_run(3, k=8), zero_run(3, k=2), zero_run(1, k=8)]
    traces, figure, _ = drawn(stages_by_ranks, runs)
    assert traces["ZeRO-3 by formula"].x == (1, 2, 4, 8, 16, 32, 64)
    assert traces["ZeRO-3 by formula"].y == (16, 8, 4, 2, 1, 0.5, 0.25)
    assert traces["ZeRO-1 by formula"].y[-1] == 8 + 8 / 64 and set(traces["DP by formula"].y) == {16}
    assert (traces["ZeRO-3"].x, traces["ZeRO-3"].y) == ((8, 2), (2, 8))
    assert (traces["ZeRO-1"].x, traces["ZeRO-1"].y, traces["DP"].x) == ((8,), (9,), ())
    assert figure.layout.yaxis.range == (0, 20)


def test_a_rank_that_holds_more_than_all_is_still_seen():
    run = zero_run(3, held=memory.State(400_000, 400_000, 2_000_000, 0)._asdict())
    _, figure, verdict = drawn(stages_by_ranks, run)
    assert figure.layout.yaxis.range[1] > 2_800_000 / 70_000 and verdict.good is False
    assert verdict.html == "<b>Not divided as it should be:</b> ZeRO-3 at k = 4 holds other bytes than predicted."


def test_lines_are_named_at_their_ends_with_the_size_of_a_7b_model():
    traces, _, _ = drawn(stages_by_ranks, zero_run(2, mixed_precision=True))
    assert traces["labels"].text == (
        "<b>DP</b> 112 GB",
        "<b>ZeRO-1</b> 29.3 GB",
        "<b>ZeRO-2</b> 15.5 GB",
        "<b>ZeRO-3</b> 1.75 GB",
        "<b>card</b> 80 GB",
    )
    traces, figure, _ = drawn(stages_by_ranks, zero_run(2, optimizer="sgd"))  # DP and ZeRO-1 hold the same
    assert figure.layout.yaxis.range[1] == 16  # so that the card is seen
    heights = sorted(traces["labels"].y)
    assert all(b - a > 0.05 * 16 for a, b in zip(heights, heights[1:], strict=False))
    assert traces["card"].y == pytest.approx([80 / 7] * 2, rel=1e-5)


def test_more_ranks_than_usual_lengthen_the_axis():
    traces, figure, _ = drawn(stages_by_ranks, zero_run(3, k=100))
    assert traces["DP by formula"].x[-1] == 128 and figure.layout.xaxis.tickvals[-1] == 128


@pytest.mark.parametrize(
    ("runs", "html", "text"),
    [
        (
            [zero_run(1, k=8), zero_run(3, k=8), zero_run(2, k=4)],
            "<b>At k = 8 saved: ZeRO-3 87.5 %, ZeRO-1 43.8 %</b>; only ZeRO-3 has no floor.",
            "k=8 saved: ZeRO-3 87.5 %, ZeRO-1 43.8 %; as predicted: yes",
        ),
        (
            zero_run(2, mixed_precision=True),
            "<b>At k = 4 saved: ZeRO-2 65.6 %</b>; however many ranks, ZeRO-2 keeps 2 bytes.",
            "k=4 saved: ZeRO-2 65.6 %; as predicted: yes",
        ),
        (
            zero_run(1, mixed_precision=True, k=2),
            "<b>At k = 2 saved: ZeRO-1 37.5 %</b>; however many ranks, ZeRO-1 keeps 4 bytes.",
            "k=2 saved: ZeRO-1 37.5 %; as predicted: yes",
        ),
        (
            zero_run(0),
            "<b>DP saves nothing:</b> each of 4 ranks holds all 16 bytes of every parameter.",
            "k=4: DP saves nothing; as predicted: yes",
        ),
    ],
)
def test_the_verdict_on_ranks(runs, html, text):
    _, _, verdict = drawn(stages_by_ranks, runs)
    assert (verdict.html, verdict.text, verdict.good) == (html, text, True)


def test_models_of_another_precision_are_refused():
    with pytest.raises(ValueError, match="4\\+4\\+8\\+0 bytes. Show them apart"):
        stages_by_ranks.show([zero_run(1), zero_run(1, mixed_precision=True)])


def test_the_conditions_name_the_ranks_in_order():
    subtitle = stages_by_ranks.show([zero_run(3, k=8), zero_run(3, k=2)]).layout.title.subtitle.text
    assert subtitle.startswith("2 / 8 ranks")


def test_stages_are_redrawn_as_made_anew():
    assert_redrawn_as_made_anew(
        stages_by_ranks, [zero_run(2), all_stages(k=100), zero_run(3, mixed_precision=True), zero_run(1, k=1)]
    )
    assert "bdata" not in stages_by_ranks.show(all_stages()).to_json()


# -- memory_over_time


def test_areas_stack_the_kinds_over_the_step_on_the_rank_with_the_highest_peak():
    run = zero_run(2)
    run.results[2]["memory"] = run.results[2]["memory"] | {"peak": 10**7}
    run.results[2]["memory"]["held"]["other"] = [0, 7, 8, 9, 0]
    traces, _, _ = drawn(memory_over_time, run)
    assert traces["other"].y == (0, 7, 8, 9, 0) and traces["other"].x == (0, 1, 4, 10, 20)
    assert traces["parameters"].y == (280_000,) * 5 and traces["gathered"].x == ()
    assert traces["parameters"].stackgroup == traces["other"].stackgroup


def test_kinds_without_a_colour_count_as_temporary():
    run = zero_run(3)
    for result in run.results:
        result["memory"]["held"]["something new"] = [1, 1, 1, 1, 1]
    traces, _, _ = drawn(memory_over_time, run)
    assert traces["other"].y == (1, 70_001, 350_001, 140_001, 1)


def test_the_peak_is_marked_where_it_is():
    traces, figure, _ = drawn(memory_over_time, zero_run(0))
    assert (traces["peak"].x, traces["peak"].y) == ((4,), (1_470_000,))
    assert traces["peak"].text == ("<b>peak 1.47 MB</b>",) and figure.layout.yaxis.range[1] == 2_000_000


def test_runs_side_by_side_share_one_scale():
    runs = [zero_run(0), zero_run(3)]
    figure = memory_over_time.show(runs)
    traces = {trace.name: trace for trace in figure.data}
    assert figure.layout.yaxis.range == figure.layout.yaxis2.range and set(figure.layout.yaxis2.ticktext) == {""}
    assert memory_over_time.show(runs[::-1]).layout.yaxis.range == figure.layout.yaxis.range == (0, 2_000_000)
    assert traces["parameters"].y[0] == 280_000 and traces["parameters2"].y[0] == 70_000
    assert figure.layout.xaxis.domain[1] < figure.layout.xaxis2.domain[0]
    assert note(figure, "title").text.startswith("<b>DP</b>") and "280 kB" in note(figure, "title2").text


@pytest.mark.parametrize(
    ("runs", "html", "text"),
    [
        (zero_run(3), "<b>Peak 2.25 × the model state</b>: on top 350 kB temporary.", "ZeRO-3 peak 2.2 × model state"),
        (
            [zero_run(0), zero_run(3)],
            "<b>ZeRO-3: peak 630 kB, 43 % of the highest</b>; activations 0 B in each.",
            "DP peak 1.3 × model state, ZeRO-3 peak 2.2 × model state",
        ),
    ],
)
def test_the_verdict_on_the_peak(runs, html, text):
    title = memory_over_time.show(runs).layout.title.text
    assert title == html
    assert memory_over_time.draw(memory_over_time.make(2), runs).text == text


def test_runs_of_fsdp_are_named_by_what_differs():
    figure = memory_over_time.show([fsdp_run(), fsdp_run(prefetch=1)])
    assert note(figure, "title").text.startswith("<b>prefetch 0</b>") and "prefetch 1" in note(figure, "title2").text
    assert figure.layout.title.text.startswith("<b>prefetch 0: peak 9 kB, 100 % of the highest</b>; activations 700 B")


def test_what_is_little_at_the_peak_is_not_told():
    run = zero_run(3)
    for result in run.results:
        result["memory"]["held"] |= {"activations": [0, 0, 10, 0, 0], "gathered": [0, 0, 70_000, 0, 0]}
    verdict = memory_over_time.draw(memory_over_time.make(), run)
    assert verdict.html.endswith(": on top 350 kB temporary and 70 kB gathered.")


def test_five_runs_do_not_fit_side_by_side():
    with pytest.raises(ValueError, match="1 to 4 fit"):
        memory_over_time.show([zero_run(1)] * 5)


def test_memory_over_time_is_redrawn_as_made_anew():
    assert_redrawn_as_made_anew(memory_over_time, [zero_run(2), zero_run(3, mixed_precision=True), zero_run(0, k=1)])
    assert "bdata" not in memory_over_time.show(all_stages()).to_json()
