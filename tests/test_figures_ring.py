"""The ring's figure: what its steps hold, what is in view, and that it is the same however it came about."""

from dataclasses import replace

import numpy as np
import pytest
from figure_checks import assert_redrawn_as_made_anew
from made_up_traffic import MiB, all_reduce_run

from dpviz.figures import ring, ring_layout, stepping
from dpviz.figures.ring_course import course
from dpviz.records import Run


def drawn(run):
    figure = ring.make()
    verdict = ring.draw(figure, run)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def column(trace, number, k, key="y"):
    """What a trace holds in the column of step `number`."""
    first = stepping.first_column(k) + number
    return [value for x, value in zip(trace.x, trace[key], strict=True) if x is not None and first <= x < first + 1]


# -- the course


@pytest.mark.parametrize("k", range(2, 9))
def test_after_the_first_half_each_rank_holds_its_own_chunk_whole_and_at_the_end_all(k):
    story = course(all_reduce_run(k))
    assert len(story.steps) == 2 * (k - 1)
    assert np.diag(story.held[k - 1]).tolist() == [k] * k
    assert np.count_nonzero(story.held[k - 1] == k) == k
    assert (story.held[-1] == k).all() and (story.held[0] == 1).all()


@pytest.mark.parametrize("k", range(2, 9))
def test_totals_grow_by_a_kth_of_the_payload_a_step(k):
    story = course(all_reduce_run(k))
    shares = story.totals / story.payload
    assert shares == pytest.approx(np.arange(2 * k - 1)[:, None] / k * np.ones(k))
    assert (story.sent[-1] > 0).sum() == k


def test_what_arrives_is_added_to_in_the_first_half_and_taken_over_in_the_second():
    story = course(all_reduce_run(4))
    first, last = story.steps[0][0], story.steps[-1][0]
    assert story.held[1, first.to, first.chunk] == first.contributions + 1 == 2
    assert story.held[-1, last.to, last.chunk] == last.contributions == 4


def test_a_rank_that_sent_too_little_is_not_said_to_have_made_the_others_whole():
    run = all_reduce_run(4)
    run.results[1]["transfers"][2]["contributions"] = 2
    assert course(run).held[3].max(axis=0).tolist() == [4, 4, 3, 4]


def test_an_all_gather_begins_with_one_chunk_on_each_rank():
    story = course(all_reduce_run(4, collective="all_gather"))
    assert story.full == 1 and story.held[0].sum(axis=1).tolist() == [1] * 4
    assert (story.held[-1] == 1).all() and story.phase(1) == ("all_gather", 1, 3)


def test_the_steps_of_each_phase_are_numbered():
    story = course(all_reduce_run(4))
    assert [story.phase(n) for n in (1, 3, 4, 6)] == [
        ("reduce_scatter", 1, 3),
        ("reduce_scatter", 3, 3),
        ("all_gather", 1, 3),
        ("all_gather", 3, 3),
    ]


def test_steps_may_also_be_counted_anew_in_each_phase():
    run = all_reduce_run(3)
    for result in run.results:
        for one in result["transfers"][2:]:
            one["step"] -= 2
    assert len(course(run).steps) == 4 and (course(run).held[-1] == 3).all()


# -- what is drawn


def test_a_chunk_is_filled_as_far_as_ranks_are_summed_in_it():
    traces, _, _ = drawn(all_reduce_run(4))
    fills = traces["contributions"]
    assert set(column(fills, 0, 4)) == {round(ring_layout.CELL_HIGH / 4, 4)}
    assert set(column(fills, 6, 4)) == {ring_layout.CELL_HIGH}
    assert sorted({*fills.marker.color}) == [0.25, 0.5, 0.75, 1]
    assert ring.SHADES[-1] == [1, ring.REDUCED] and ring.SHADES[-2][1] != ring.REDUCED


def test_each_step_has_an_arrow_a_rank_with_the_chunk_in_its_middle():
    traces, _, _ = drawn(all_reduce_run(4))
    way = traces["on its way"]
    assert column(way, 0, 4, "text") == []
    assert column(way, 1, 4, "text") == ["D", "A", "B", "C"]
    assert "rank 0 → rank 1: chunk D" in way.hovertext[0] and "64 B in 0.40 ms" in way.hovertext[0]
    for rank in range(4):
        arrow = traces[f"from rank {rank}"]
        assert len(column(arrow, 1, 4)) == len(column(arrow, 6, 4)) == 19 and column(arrow, 0, 4) == []
        assert sorted(set(arrow.marker.size)) == [0, ring.HEAD]
    assert traces["from rank 4"].x == ()


def test_what_arrived_in_a_step_is_framed():
    traces, _, _ = drawn(all_reduce_run(4))
    assert [len(column(traces["arrived"], number, 4)) for number in range(7)] == [0] + [4] * 6


def test_the_matrix_fills_and_the_totals_reach_the_dashed_line():
    traces, figure, _ = drawn(all_reduce_run(4))
    filled, total = traces["sent to"], traces["total"]
    assert [len(column(filled, number, 4)) for number in range(7)] == [0] + [4] * 6
    heights = [column(filled, number, 4)[0] for number in range(1, 7)]
    assert heights == sorted(heights, reverse=True) and heights[-1] == pytest.approx(-0.84)
    assert total.x[-1] == pytest.approx(traces["a ring's"].x[0])
    assert [*traces["numbers"].text][::4] == ["0.00", "0.25", "0.50", "0.75", "1.00", "1.25", "1.50"]
    assert "2(k−1)/k = 1.50 S" in notes(figure)["totals"]


def notes(figure):
    return {note.name: note.text for note in figure.layout.annotations}


def test_the_kernels_count_of_a_whole_call_stands_beside_the_steps():
    traces, figure, _ = drawn(all_reduce_run(4))
    assert traces["kernel"].x == pytest.approx([traces["a ring's"].x[0]] * 4, abs=1e-3)
    assert "1.5001 S in one call with S = 8 MiB" in traces["kernel"].hovertext[0]
    run = all_reduce_run(4)
    for result in run.results:
        result["sent_to"] = None
    traces, figure, _ = drawn(run)
    assert traces["kernel"].x == () and "kernel" not in notes(figure)["totals"]


@pytest.mark.parametrize("k", range(2, 9))
def test_rows_of_chunks_and_arrows_stay_apart_and_inside(k):
    wide, high = ring_layout.cell_width(k) * k, ring_layout.CELL_HIGH + ring_layout.NAME
    boxes = [
        (x - wide / 2, x + wide / 2, y - ring_layout.CELL_HIGH / 2, y - ring_layout.CELL_HIGH / 2 + high)
        for x, y in (ring_layout.place(rank, k) for rank in range(k))
    ]
    assert all(0 <= left < right <= 1 and 0 <= low < top <= 1 for left, right, low, top in boxes)
    for i, (left, right, low, top) in enumerate(boxes):
        for other_left, other_right, other_low, other_top in boxes[:i]:
            assert right < other_left or other_right < left or top < other_low or other_top < low
        for x, y in ring_layout.path(i, (i + 1) % k, k):
            assert not any(a < x < b and c < y < d for a, b, c, d in boxes)


# -- the steps in view


def test_the_slider_moves_the_view_and_nothing_else():
    _, figure, _ = drawn(all_reduce_run(4))
    slider = figure.layout.sliders[0]
    shown = [step for step in slider.steps if step.visible]
    assert [step.label for step in shown] == list("0123456")
    assert [step.args for step in shown] == [("xaxis.range", (400 + n, 401 + n)) for n in range(7)]
    assert {step.method for step in shown} == {"relayout"}
    assert slider.active == 3 and figure.layout.xaxis.range == (403, 404)
    assert figure.layout.xaxis2.matches == figure.layout.xaxis3.matches == "x"


def test_the_play_button_shows_every_step_and_moves_the_handle():
    _, figure, _ = drawn(all_reduce_run(4))
    play, pause = figure.layout.updatemenus[0].buttons
    frames, options = play.args
    assert play.method == pause.method == "animate" and pause.args[0] == (None,) and options["mode"] == "immediate"
    assert [frame["layout"]["xaxis"]["range"] for frame in frames] == [[400 + n, 401 + n] for n in range(7)]
    assert [frame["layout"]["sliders"][0]["active"] for frame in frames] == list(range(7))
    assert len(frames[0]["layout"]["sliders"][0]["steps"]) == 15
    assert options["transition"]["duration"] == 0


def test_another_number_of_ranks_begins_anew_and_the_same_one_stays_at_its_step():
    views = {k: (drawn(all_reduce_run(k))[1].layout.xaxis.range, k) for k in range(2, 9)}
    begins = [drawn(all_reduce_run(k))[1].layout.sliders[0].active for k in range(2, 9)]
    assert len(set(views.values())) == 7 and begins == list(range(1, 8))
    one, other = (drawn(all_reduce_run(4, gbps=gbps))[1] for gbps in (1.0, 5.0))
    assert one.layout.xaxis.range == other.layout.xaxis.range


# -- without steps


@pytest.mark.parametrize(("algorithm", "arrows"), [("gloo", 4), ("naive", 6)])
def test_what_other_algorithms_send_is_drawn_as_the_kernel_counted_it(algorithm, arrows):
    traces, figure, verdict = drawn(all_reduce_run(4, algorithm=algorithm))
    assert sum([*traces[f"from rank {rank}"].marker.size].count(ring.HEAD) for rank in range(4)) == arrows
    assert traces["letters"].text == ("S",) * 4 and traces["contributions"].x == ()
    assert figure.layout.sliders[0].visible is figure.layout.updatemenus[0].visible is False
    assert "the kernel counted" in notes(figure)["ring"] and "S = 8 MiB" in notes(figure)["totals"]
    assert ("Rank 0 sends 3.00 S" in verdict.html) == (algorithm == "naive")


def test_without_the_kernels_counters_only_totals_are_shown():
    run = all_reduce_run(4, algorithm="naive")
    for result in run.results:
        result["sent_to"] = None
    traces, figure, _ = drawn(run)
    assert traces["sent to"].x == () and traces["numbers"].text == ("3.00", "1.00", "1.00", "1.00")
    assert "not measured" in notes(figure)["ring"]


# -- what it says


@pytest.mark.parametrize(
    ("run", "begins", "text", "good"),
    [
        (
            all_reduce_run(4),
            "<b>Each rank sends 1.50 S</b> in 6 steps of S/4, as 2(k−1)/k says.",
            "ring all-reduce, a rank sends 1.50 S",
            True,
        ),
        (
            all_reduce_run(4, collective="reduce_scatter"),
            "<b>Each rank sends 0.75 S</b> in 3 steps of S/4, as (k−1)/k says.",
            "ring reduce-scatter, a rank sends 0.75 S",
            True,
        ),
        (
            all_reduce_run(4, algorithm="gloo", collective="reduce_scatter"),
            "<b>A rank sends 1.50 S</b> where (k−1)/k says 0.75; S = 8 MiB.",
            "gloo reduce-scatter, a rank sends 1.50 S",
            False,
        ),
        (
            all_reduce_run(4, equal=[True, False]),
            "<b>Wrong result</b>",
            "ring all-reduce, a rank sends 1.50 S, result: wrong",
            False,
        ),
        (all_reduce_run(1), "<b>Nothing is sent:</b>", "0 S sent", True),
    ],
)
def test_the_verdict(run, begins, text, good):
    verdict = ring.draw(ring.make(), run)
    assert verdict.html.startswith(begins)
    assert (verdict.text, verdict.good) == (text, good)


def test_headers_are_named_where_they_weigh():
    small = all_reduce_run(4, sizes=(4096,), bytes_over_payload=[1.7109], framing_bytes_predicted=[864])
    verdict = ring.draw(ring.make(), small)
    assert verdict.html.endswith("6 steps of S/4, 2(k−1)/k = 1.50 S and headers.") and verdict.good
    verdict = ring.draw(ring.make(), replace(small, facts=small.facts | {"framing_bytes_predicted": [None]}))
    assert "where 2(k−1)/k says 1.50" in verdict.html and verdict.good is False


def test_more_ranks_than_letters_are_refused_with_a_sentence():
    with pytest.raises(ValueError, match="this run has 9 ranks.*at most. Use fewer"):
        ring.draw(ring.make(), all_reduce_run(9))


# -- as all figures do

SEVERAL = [
    all_reduce_run(8),
    all_reduce_run(4, algorithm="naive"),
    all_reduce_run(1),
    all_reduce_run(3, collective="all_gather", sizes=(MiB,)),
]


@pytest.mark.parametrize("run", SEVERAL)
def test_every_run_is_drawn_without_numpys_own_types(run):
    figure = ring.show(run)
    assert "bdata" not in figure.to_json() and "NaN" not in figure.to_json()
    assert run.environment.line() == figure.layout.title.subtitle.text


def test_a_panels_figure_is_the_one_made_anew_after_each_draw():
    assert_redrawn_as_made_anew(ring, [*SEVERAL, all_reduce_run(8), all_reduce_run(2)])


def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path):
    run = replace(all_reduce_run(4))
    run.save(tmp_path / "run.json")
    assert ring.show(Run.load(tmp_path / "run.json")).to_json() == ring.show(run).to_json()
