"""The curves of lessons 04 and 05: time by size, bytes by ranks, backward by bucket; and what keeps labels apart."""

import math
from dataclasses import replace

import pytest
from figure_checks import assert_redrawn_as_made_anew, smallest_text
from made_up_traffic import MiB, all_reduce_run, buckets_run

from dpviz.figures import bucket_sweep, link_times, ring, timeline, traffic_by_ranks
from dpviz.figures.style import apart, binary_text, tint
from dpviz.records import Run

CAPS = (0.25, 1, 2, 8, 64)
TOOK = (0.170, 0.155, 0.153, 0.18, 0.2)


def drawn(module, runs):
    figure = module.make()
    verdict = module.draw(figure, runs)
    return {trace.name: trace for trace in figure.data}, figure, verdict


def links(*rates):
    return [all_reduce_run(4, algorithm="gloo", gbps=rate) for rate in rates]


def sweep(k=2, **more):
    return [buckets_run(k, cap=cap, backward_s=took, **more) for cap, took in zip(CAPS, TOOK, strict=True)]


def everything(ks=range(2, 9)):
    ways = [("gloo", "all_reduce"), ("ring", "all_reduce"), ("gloo", "reduce_scatter"), ("ring", "reduce_scatter")]
    ways += [("naive", "all_reduce"), ("ring", "all_gather"), ("gloo", "all_gather")]
    return [all_reduce_run(k, algorithm=algorithm, collective=collective) for k in ks for algorithm, collective in ways]


# -- time by size


def test_a_line_a_link_with_its_spread_its_fit_and_the_links_own_rate():
    traces, _, _ = drawn(link_times, links(5.0, 0.2))
    measured, fit, rate = (traces[f"{name} 0"] for name in ("measured", "fit", "rate"))  # the slowest comes first
    run = all_reduce_run(4, algorithm="gloo", gbps=0.2)
    assert measured.x == tuple(run.facts["payload_bytes"])
    assert measured.y == pytest.approx([one["median"] for one in run.facts["seconds"]], rel=1e-4)
    assert measured.error_y.array[-1] == pytest.approx(0.2 * measured.y[-1], rel=1e-3)
    assert measured.error_y.arrayminus[-1] == pytest.approx(0.05 * measured.y[-1], rel=1e-3)
    assert fit.y[-1] == pytest.approx(measured.y[-1], rel=1e-3) and rate.y[-1] == pytest.approx(0.503, rel=1e-2)
    assert fit.y[0] > 1.5 * rate.y[0]
    assert traces["measured 0"].marker.symbol != traces["measured 1"].marker.symbol
    assert traces["measured 2"].x == traces["fit 2"].x == ()


def test_without_a_link_there_is_no_rate_and_without_sizes_no_fit():
    traces, _, _ = drawn(link_times, links(None))
    assert traces["rate 0"].x == () and len(traces["fit 0"].x) == 40
    one = all_reduce_run(4, sizes=(MiB,), call_s=None, latency_s=None, bandwidth_bytes_per_s=None)
    traces, _, _ = drawn(link_times, one)
    assert traces["fit 0"].x == () and traces["labels"].text == ("<b>1 Gb/s</b>",)


def test_a_bandwidth_without_bounds_is_said_to_be_one():
    traces, figure, _ = drawn(link_times, all_reduce_run(4, bandwidth_bytes_per_s=math.inf))
    assert "unbounded" in traces["labels"].text[0] and "Infinity" not in figure.to_json()


def test_the_labels_of_lines_that_end_together_do_not_cover_each_other():
    traces, figure, _ = drawn(link_times, links(0.2, 1.0, 5.0, None))
    low, high = figure.layout.yaxis.range
    places = sorted(math.log10(y) for y in traces["labels"].y)
    gaps = [b - a for a, b in zip(places, places[1:], strict=False)]
    assert min(gaps) > 0.99 * link_times.LINE * (high - low) and low < places[0] and places[-1] < high
    assert all(x < 10 ** figure.layout.xaxis.range[1] for x in traces["labels"].x)
    assert set(traces["labels"].text) == {
        "<b>0.2 Gb/s</b><br>fit 0.2 Gb/s",
        "<b>1 Gb/s</b><br>fit 1 Gb/s",
        "<b>5 Gb/s</b><br>fit 5 Gb/s",
        "<b>no link</b><br>fit 5 Gb/s",
    }


def test_what_the_slowest_link_costs_is_said():
    verdict = drawn(link_times, links(5.0, 0.2))[2]
    assert verdict.html == "<b>8 MiB takes 504 ms</b> at 0.2 Gb/s, 503 ms by its bytes; 4 KiB takes 546 µs."
    assert verdict.text == "4 sizes, 2 lines"
    assert drawn(link_times, all_reduce_run(equal=[False]))[2].good is False


def test_the_conditions_of_several_runs_are_named_together():
    shown = link_times.show(links(0.2, 1.0))
    assert shown.layout.title.subtitle.text == "4 ranks, gloo, 2 cores, link 0.2 / 1 Gb/s"
    shown = traffic_by_ranks.show([all_reduce_run(k) for k in range(2, 9)])
    assert shown.layout.title.subtitle.text == "2 to 8 ranks, gloo, 2 cores, link 1 Gb/s"


# -- bytes by ranks


def test_points_lie_on_their_curve():
    traces, _, verdict = drawn(traffic_by_ranks, everything())
    for name, formula in (
        ("gloo's all-reduce", "2(k−1)/k"),
        ("gloo's reduce-scatter", "2(k−1)/k"),
        ("ring reduce-scatter", "(k−1)/k"),
        ("ring all-gather", "(k−1)/k"),
        ("naive all-reduce", "k − 1"),
    ):
        points = zip(traces[name].x, traces[name].y, strict=True)
        assert all(y == pytest.approx(traffic_by_ranks.CURVES[formula](round(x)), rel=1e-3) for x, y in points)
        assert [round(x) for x in traces[name].x] == list(range(2, 9))
    assert verdict.good and verdict.text == "bytes as predicted: yes"
    assert verdict.html == "<b>1.00 S at k = 2, 1.75 S at k = 8</b>: gloo's all-reduce; its reduce-scatter too."


def test_points_that_would_cover_each_other_stand_side_by_side():
    traces, _, _ = drawn(traffic_by_ranks, everything([4]))
    names = [trace for trace in traces if trace.startswith(("gloo", "ring", "naive"))]
    places = sorted(traces[name].x[0] for name in names)
    assert min(b - a for a, b in zip(places, places[1:], strict=False)) == pytest.approx(traffic_by_ranks.APART)
    assert sum(places) / len(places) == pytest.approx(4)
    assert len({traces[name].marker.symbol for name in names}) == len(names)


def test_one_run_is_one_point_under_its_own_name():
    traces, _, verdict = drawn(traffic_by_ranks, all_reduce_run(4))
    assert traces["ring all-reduce"].x == (4,) and traces["labels"].text == ("□ ring all-reduce",)
    assert verdict.html == "<b>ring all-reduce sends 1.50 S</b> with 4 ranks, as predicted."


def test_a_point_is_that_of_the_largest_payload_where_headers_weigh_least():
    run = all_reduce_run(4, bytes_over_payload=[1.92, 1.53, 1.502, 1.5])
    assert drawn(traffic_by_ranks, run)[0]["ring all-reduce"].y == (1.5,)
    assert drawn(traffic_by_ranks, replace(run, facts=run.facts | {"payload_bytes": [9, 3, 2, 1]}))[2].good is False


def test_bytes_that_are_not_as_predicted_are_named():
    runs = [all_reduce_run(4), all_reduce_run(3, bytes_over_payload=[2.0] * 4)]
    verdict = drawn(traffic_by_ranks, runs)[2]
    assert verdict.html == "<b>Not as predicted:</b> ring all-reduce sends 2.00 S on 3 ranks." and not verdict.good


def test_one_rank_is_no_point():
    assert drawn(traffic_by_ranks, all_reduce_run(1))[2].html.startswith("<b>Nothing is sent:</b>")


# -- backward by bucket


def test_backward_stands_over_the_cap_with_computing_alone_as_its_floor():
    traces, figure, verdict = drawn(bucket_sweep, sweep()[::-1])
    assert traces["line 0"].x == CAPS and traces["line 0"].y == pytest.approx([1e3 * took for took in TOOK])
    assert traces["computing alone"].y == (50.0,) * 5
    assert traces["line 0"].error_y.array[0] == pytest.approx(17, abs=0.1)
    assert (traces["best"].x, traces["best"].y) == ((2.0,), (153.0,))
    assert len(traces["exposed"].x) == 10 and min(traces["exposed"].y) == 50
    assert verdict.html == "<b>Best at 1 to 2 MiB:</b> 153 ms; 64 MiB takes 1.31 times that."
    assert figure.layout.xaxis.ticktext == ("0.25", "1", "2", "8", "64")


def test_caps_that_do_as_well_are_only_named_without_a_gap():
    runs = sweep()
    runs[0] = buckets_run(2, cap=0.25, backward_s=0.154)
    runs[1] = buckets_run(2, cap=1, backward_s=0.19)
    assert "Best at 2 MiB:" in drawn(bucket_sweep, runs)[2].html


def test_runs_that_differ_in_more_than_the_cap_are_lines_of_their_own():
    traces, figure, verdict = drawn(bucket_sweep, sweep(2) + sweep(4, gbps=5.0))
    assert verdict.html.startswith("<b>Best at 1 to 2 MiB (k = 2, 1 Gb/s):</b>")
    assert "shaded" not in figure.layout.annotations[0].text
    assert traces["line 1"].x == CAPS and traces["line 0"].marker.symbol != traces["line 1"].marker.symbol
    assert traces["labels"].text == ("<b>k = 2, 1 Gb/s</b>", "<b>k = 4, 5 Gb/s</b>")
    assert traces["exposed"].x == () and traces["computing alone"].x == ()
    with pytest.raises(ValueError, match="5 settings, but 1 to 4"):
        drawn(bucket_sweep, [run for k in range(2, 7) for run in sweep(k)])


def test_in_a_panel_the_newest_run_is_marked_on_the_sweep():
    marked = bucket_sweep.Marked(sweep())
    figure = marked.make()
    verdict = marked.draw(figure, buckets_run(2, cap=4, backward_s=0.16))
    traces = {trace.name: trace for trace in figure.data}
    assert (traces["now"].x, traces["now"].y) == ((4.0,), (160.0,)) and traces["line 0"].x == CAPS
    assert verdict.html == "<b>160 ms with a cap of 4 MiB</b>, 110 ms of it exposed."
    assert verdict.text == "cap 4 MiB, 8 buckets"


def test_an_outlier_does_not_flatten_the_curve():
    runs = sweep()
    high = drawn(bucket_sweep, runs)[1].layout.yaxis.range
    runs[0] = replace(runs[0], facts=runs[0].facts | {"backward_range_s": [0.1, 4.0]})
    assert drawn(bucket_sweep, runs)[1].layout.yaxis.range == high == (0, 250)


# -- as all figures do


@pytest.mark.parametrize(
    ("module", "several"),
    [
        (link_times, [links(0.2, 1.0, 5.0), all_reduce_run(8, gbps=None), all_reduce_run(2)]),
        (traffic_by_ranks, [everything(), all_reduce_run(8), all_reduce_run(1)]),
        (bucket_sweep, [sweep(), buckets_run(4), sweep(2) + sweep(4)]),
    ],
)
def test_a_panels_figure_is_the_one_made_anew_after_each_draw(module, several):
    assert_redrawn_as_made_anew(module, [*several, several[0]])
    for runs in several:
        text = module.show(runs).to_json()
        assert "bdata" not in text and "NaN" not in text


@pytest.mark.parametrize(("module", "run"), [(link_times, all_reduce_run()), (bucket_sweep, buckets_run())])
def test_a_run_loaded_from_a_file_is_drawn_alike(tmp_path, module, run):
    run.save(tmp_path / "run.json")
    assert module.show(Run.load(tmp_path / "run.json")).to_json() == module.show(run).to_json()


@pytest.mark.parametrize(
    "figure",
    [
        link_times.show(links(0.2, 1.0)),
        traffic_by_ranks.show(everything()),
        bucket_sweep.show(sweep()),
        ring.show(all_reduce_run(4)),
        timeline.show(buckets_run(2)),
    ],
)
def test_no_text_is_smaller_than_twelve(figure):
    assert smallest_text(figure) >= 12


def test_places_of_labels_move_no_more_than_they_must():
    assert apart([3.0, 1.0, 2.0], gap=0.5) == [3.0, 1.0, 2.0]
    assert apart([1.0, 1.0], gap=0.5) == [0.75, 1.25]
    assert apart([0.0, 0.1], gap=1.0, low=0.0) == [0.0, 1.0]
    assert apart([9.0, 10.0, 10.0], gap=1.0, low=0.0, high=10.0) == [8.0, 9.0, 10.0]
    assert apart([], gap=1.0) == []


def test_settings_and_shades_are_written_as_a_reader_expects():
    assert [binary_text(n) for n in (12, 1000, 1024, 65536, 8 * MiB, 1 << 30)] == [
        "12 B",
        "1000 B",
        "1 KiB",
        "64 KiB",
        "8 MiB",
        "1 GiB",
    ]
    assert (tint("#0072B2", white=0), tint("#0072B2", white=1)) == ("#0072b2", "#ffffff")
