"""The timeline of buckets: lanes, what waits and what is sent, the tail, and the sentence."""

import pytest
from figure_checks import assert_redrawn_as_made_anew
from made_up_traffic import buckets_run

from dpviz.figures import timeline
from dpviz.figures.style import rank_colour, tint
from dpviz.records import Run


def drawn(run):
    figure = timeline.make()
    verdict = timeline.draw(figure, run)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def note(figure, name):
    return next(note.text for note in figure.layout.annotations if note.name == name)


def test_each_rank_has_its_work_and_below_it_a_lane_a_bucket():
    traces, figure, _ = drawn(buckets_run(2, count=8))
    assert [len(traces[name].x) for name in ("forward", "backward", "sent", "waiting", "done")] == [2, 2, 16, 16, 16]
    assert [int(y) for y in traces["sent"].y] == [0] * 8 + [1] * 8
    lanes = traces["sent"].y[:8]
    assert list(lanes) == sorted(lanes) and lanes[0] > traces["backward"].y[0] + traces["backward"].width[0] / 2
    assert traces["backward"].marker.color == tuple(tint(rank_colour(rank), white=0) for rank in range(2))
    assert traces["waiting"].marker.color[0] == tint(rank_colour(0), white=timeline.PALE)
    assert figure.layout.yaxis.range == (2, 0)


def test_a_bucket_waits_from_ready_and_is_sent_from_start_to_end():
    run = buckets_run(2, count=4)
    traces, _, _ = drawn(run)
    bucket = run.results[1]["buckets"][2]
    waiting, sent = traces["waiting"], traces["sent"]
    assert waiting.base[6] == pytest.approx(1e3 * bucket["ready_s"], abs=1e-3)
    assert sent.base[6] == pytest.approx(1e3 * bucket["start_s"], abs=1e-3)
    assert sent.base[6] + sent.x[6] == pytest.approx(1e3 * bucket["end_s"], abs=2e-3)
    assert "rank 1" in sent.hovertext[6] and "bucket 2 (2 MiB)" in sent.hovertext[6]


def test_what_an_earlier_bucket_holds_back_is_told_apart():
    run = buckets_run(2, count=2)
    traces, _, _ = drawn(run)
    assert traces["held back"].x == ()
    run.results[0]["buckets"][1]["handed_s"] += 0.02
    traces, _, _ = drawn(run)
    assert traces["held back"].x == (20.0,) and traces["held back"].marker.pattern.shape == "/"


def test_work_ends_where_the_last_gradient_is_computed_and_waiting_begins():
    run = buckets_run(2, count=4, compute_s=0.05, backward_s=0.15)
    traces, figure, _ = drawn(run)
    assert traces["backward"].x == (50.0, 50.0) and traces["waits"].x == (100.0, 100.0)
    tail = next(shape for shape in figure.layout.shapes if shape.name == "tail")
    assert (tail.x0, tail.x1) == (50.0, 150.0)
    assert "tail of this iteration: 100 ms" in note(figure, "tail")


def test_the_tail_begins_when_the_last_rank_has_computed():
    traces, figure, _ = drawn(buckets_run(2, late=1))
    tail = next(shape for shape in figure.layout.shapes if shape.name == "tail")
    assert (tail.x0, tail.x1) == (50.0, 150.0) and min(traces["waits"].base) == -50.0
    assert max(traces["data"].x) == pytest.approx(100)


def test_hundreds_of_buckets_share_lanes():
    traces, _, _ = drawn(buckets_run(4, count=260))
    assert len(set(traces["waiting"].y)) <= 4 * timeline.LANES and traces["done"].x == ()
    assert "buckets 0 to 8" in traces["waiting"].hovertext[0]


def test_times_that_overlap_in_a_lane_are_joined():
    assert timeline._joined([(3, 4), (0, 2), (1, 2.5), (2.5, 2.7)]) == [(0, 2.7), (3, 4)]


def test_without_buckets_backward_is_all_work():
    traces, figure, verdict = drawn(buckets_run(2, count=0))
    assert traces["backward"].x == (150.0, 150.0) and traces["waits"].x == () and note(figure, "tail") == ""
    assert verdict.html.startswith("<b>Nothing is sent</b>")


def test_the_axis_ends_at_steps():
    ranges = [drawn(buckets_run(2, backward_s=s))[1].layout.xaxis.range for s in (0.151, 0.19, 0.199)]
    assert ranges[0] == ranges[1] == (-30.0, 200.0) and ranges[2] == (-30.0, 250.0)


@pytest.mark.parametrize(
    ("run", "begins", "text", "good"),
    [
        (
            buckets_run(overlap_fraction=0.31),
            "<b>100 ms exposed:</b> backward 150 ms, without sending 50.0 ms; 31 % hidden.",
            "8 buckets, gradient equal: yes",
            None,
        ),
        (
            buckets_run(exposed_s=-0.001, overlap_fraction=1.0),
            "<b>All is hidden:</b>",
            "8 buckets, gradient equal: yes",
            True,
        ),
        (
            buckets_run(4, late=2),
            "<b>All wait for rank 2</b>, 100 ms late: backward 150 ms",
            "8 buckets, gradient equal: yes, a rank is late",
            None,
        ),
        (buckets_run(gradients_equal=False), "<b>Wrong gradient:</b>", "8 buckets, gradient equal: no", False),
        (buckets_run(count=1), "<b>100 ms exposed:</b>", "1 bucket, gradient equal: yes", None),
    ],
)
def test_the_verdict(run, begins, text, good):
    verdict = timeline.draw(timeline.make(), run)
    assert verdict.html.startswith(begins)
    assert (verdict.text, verdict.good) == (text, good)


SEVERAL = [buckets_run(8), buckets_run(1, count=0), buckets_run(2, late=1), buckets_run(32)]


@pytest.mark.parametrize("run", SEVERAL)
def test_every_world_size_is_drawn(run):
    text = timeline.show(run).to_json()
    assert "bdata" not in text and "NaN" not in text


def test_a_panels_figure_is_the_one_made_anew_after_each_draw():
    assert_redrawn_as_made_anew(timeline, [*SEVERAL, buckets_run(2, count=3)])


def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path):
    run = buckets_run(2)
    run.save(tmp_path / "run.json")
    assert timeline.show(Run.load(tmp_path / "run.json")).to_json() == timeline.show(run).to_json()
