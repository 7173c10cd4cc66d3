"""What a collective costs: bytes to the byte, what the ring's messages hold, and what times are made of."""

import dataclasses
import json
import subprocess
import sys

import pytest
from made_up import environment

from dpviz.experiments.all_reduce import experiment, watched_ring
from dpviz.parallel import ring
from dpviz.questions.all_reduce import Config
from dpviz.ranks.launch import launch
from dpviz.records import Run

LISTED = [
    ("gloo", "all_reduce"),
    ("gloo", "reduce_scatter"),
    ("gloo", "all_gather"),
    ("ring", "all_reduce"),
    ("ring", "reduce_scatter"),
    ("ring", "all_gather"),
    ("naive", "all_reduce"),
]


def launched(k=4, **fields):
    return launch(experiment, Config(**{"repeats": 1, **fields}), world_size=k)


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize(("algorithm", "collective"), LISTED)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.thorough)])
def test_results_are_right_and_bytes_are_predicted_to_the_byte(k, algorithm, collective, dtype):
    sizes = (1, 13, 4096, 100_001, 9 << 20)
    run = launched(k, sizes=sizes, algorithm=algorithm, collective=collective, dtype=dtype)
    facts = run.facts
    assert facts["equal"] == [True] * 5
    assert all(payload >= size for payload, size in zip(facts["payload_bytes"], sizes, strict=True))
    sent = [ratio * size for ratio, size in zip(facts["bytes_over_payload"], facts["payload_bytes"], strict=True)]
    columns = ("bytes_over_payload_predicted", "payload_bytes", "framing_bytes_predicted")
    expected = [ratio * size + framing for ratio, size, framing in zip(*(facts[c] for c in columns), strict=True)]
    assert sent == pytest.approx(expected, abs=1e-3)
    for rank, result in enumerate(run.results):
        assert sum(result["sent_to"]) == result["bytes_sent"][-1]
        assert result["sent_to"][rank] == 0


@pytest.mark.parametrize("algorithm", ["gloo", "ring"])
@pytest.mark.parametrize(("k", "models"), [(2, 1.0), (3, 1.333), (4, 1.5), (8, 1.75)])
def test_case_15_two_models_is_true_only_of_many_ranks(algorithm, k, models):
    facts = launched(k, sizes=[8 << 20], algorithm=algorithm).facts
    assert facts["bytes_over_payload"] == pytest.approx([models], rel=0.001)
    assert facts["formula_bytes_over_payload"] == pytest.approx([models], rel=0.001)


def test_gloos_reduce_scatter_sends_as_much_as_an_all_reduce_and_the_ring_half():
    gloo, ring = (launched(sizes=[1 << 20], algorithm=a, collective="reduce_scatter").facts for a in ("gloo", "ring"))
    assert gloo["bytes_over_payload"] == pytest.approx([1.5], rel=0.01)
    assert ring["bytes_over_payload"] == pytest.approx([0.75], rel=0.01)
    assert gloo["formula_bytes_over_payload"] == ring["formula_bytes_over_payload"] == [0.75]


def test_by_way_of_rank_0_that_one_sends_k_minus_1_payloads():
    run = launched(sizes=[1 << 20], algorithm="naive")
    assert run.facts["bytes_over_payload_by_rank"] == [pytest.approx([3, 1, 1, 1], rel=0.001)]
    assert [result["sent_to"][0] > 1 << 20 for result in run.results] == [False, True, True, True]


@pytest.mark.parametrize("algorithm", ["gloo", "ring", "naive"])
def test_counted_where_the_kernel_does_not_tell(monkeypatch, algorithm):
    monkeypatch.setenv("DPVIZ_WIRE", "counted")
    run = launched(3, sizes=[30_000], algorithm=algorithm)
    assert run.facts["bytes_over_payload"] == [2.0 if algorithm == "naive" else pytest.approx(4 / 3)]
    assert run.facts["framing_bytes_predicted"] == [0]
    assert [result["sent_to"] for result in run.results] == [None] * 3


class TestTransfers:
    def test_they_are_those_of_a_ring(self):
        run = launched(sizes=[4096, 64], algorithm="ring")
        for rank, result in enumerate(run.results):
            transfers = result["transfers"]
            assert [one["step"] for one in transfers] == [0, 1, 2, 3, 4, 5]
            assert [one["phase"] for one in transfers] == ["reduce_scatter"] * 3 + ["all_gather"] * 3
            assert [one["contributions"] for one in transfers] == [1, 2, 3, 4, 4, 4]
            assert [one["chunk"] for one in transfers] == [(rank - 1 - step) % 4 for step in range(3)] + [
                (rank - step) % 4 for step in range(3)
            ]
            assert {one["to"] for one in transfers} == {(rank + 1) % 4}
            assert sum(one["bytes"] for one in transfers) == 1.5 * result["ring_payload_bytes"] == 1.5 * 64
            assert all(0 <= one["start_s"] < one["end_s"] < 10 for one in transfers)
        assert min(result["transfers"][0]["start_s"] for result in run.results) == 0

    def test_they_come_from_what_travels(self):
        """A ring that forgets to add is found out by the names in its sums."""

        def forgetful(tensor, *, exchange):
            def forgetting(outgoing, incoming):
                exchange(outgoing, incoming)
                incoming.zero_()

            ring.reduce_scatter(tensor, exchange=forgetting)

        run = launch(lambda _: watched_ring(Config(algorithm="ring"), forgetful), world_size=3)
        assert [one["contributions"] for one in run.results[0]["transfers"]] == [1, 1]

    @pytest.mark.parametrize("k", [1, 2, 32])
    def test_any_number_of_ranks(self, k):
        run = launched(k, sizes=[16], algorithm="ring")
        assert [len(result["transfers"]) for result in run.results] == [2 * (k - 1)] * k
        assert all(one["contributions"] == k for one in run.results[0]["transfers"][k - 1 :])

    @pytest.mark.parametrize("collective", ["reduce_scatter", "all_gather"])
    def test_a_half_alone(self, collective):
        run = launched(3, sizes=[100], algorithm="ring", collective=collective)
        assert [one["phase"] for one in run.results[0]["transfers"]] == [collective] * 2

    def test_only_a_ring_has_them(self):
        assert "transfers" not in launched(2, sizes=[100]).results[0]


def made_up(spans, *, sent=((5000, 5000), (2 << 20, 2 << 20)), gbps=None, **fields):
    """A run whose times are known: spans[rank][size][repeat] = [start, end], sent[size][rank] in bytes."""
    sizes = (4096, 1 << 20)[: len(sent)]
    config = Config(sizes=sizes, repeats=len(spans[0][0]), **fields)
    return Run(
        experiment="all_reduce",
        config=dataclasses.asdict(config),
        results=[
            {"spans": spans[rank], "bytes_sent": [of_ranks[rank] for of_ranks in sent], "equal": [True] * len(sizes)}
            for rank in range(2)
        ],
        records=[[], []],
        wire=[],
        environment=dataclasses.replace(environment(2), link_gbps=gbps),
    )


class TestTimes:
    def test_a_call_lasts_from_the_latest_start_to_the_latest_end(self):
        spans = [[[[0.0, 5.0], [10.0, 12.0], [20.0, 21.0]]], [[[1.0, 4.0], [9.0, 13.0], [20.5, 30.0]]]]
        facts = Config.facts(made_up(spans, sent=[(5000, 5000)]))
        assert facts["seconds"] == [{"median": 4.0, "min": 3.0, "max": 9.5}]
        assert facts["algorithm_bandwidth_bytes_per_s"] == [4096 / 4] == facts["bus_bandwidth_bytes_per_s"]
        assert facts["latency_s"] is facts["bandwidth_bytes_per_s"] is None  # one size is no line

    def test_latency_and_bandwidth_are_those_of_the_line_and_their_ranges_those_of_each_repeat(self):
        times = [(0.002 + 5000 / rate, 0.002 + (2 << 20) / rate) for rate in (1e8, 2e8, 4e8)]
        spans = [[[[0.0, one[size]] for one in times] for size in range(2)]] * 2
        facts = Config.facts(made_up(spans))
        assert facts["bandwidth_bytes_per_s"] == pytest.approx(2e8)
        assert facts["bandwidth_range_bytes_per_s"] == pytest.approx([1e8, 4e8])
        assert facts["call_s"] == pytest.approx(0.002)
        assert facts["latency_s"] == pytest.approx(0.001)  # a ring of two has two steps
        assert facts["latency_range_s"] == pytest.approx([0.001, 0.001])

    @pytest.mark.parametrize(("algorithm", "ways"), [("gloo", 1), ("ring", 1), ("naive", 2)])
    def test_the_formulas_seconds_are_its_bytes_at_the_links_rate(self, algorithm, ways):
        spans = [[[[0.0, 1.0]]] * 2] * 2
        at_a_gigabit = Config.facts(made_up(spans, gbps=1.0, algorithm=algorithm))["formula_seconds"]
        assert at_a_gigabit == pytest.approx([ways * 4096 / 1.25e8, ways * (1 << 20) / 1.25e8])
        assert Config.facts(made_up(spans))["formula_seconds"] == [None, None]

    def test_every_repeat_is_there(self):
        run = launched(2, sizes=[100, 5000], repeats=4)
        assert [[len(repeats) for repeats in result["spans"]] for result in run.results] == [[4, 4]] * 2
        assert all(0 < one["min"] <= one["median"] <= one["max"] < 5 for one in run.facts["seconds"])
        assert [step.values["payload_bytes"] for step in run.records[1]] == [100, 5000]


def test_a_saved_run_is_read_back_with_the_same_facts(tmp_path):
    run = launched(2, sizes=[64, 4096], algorithm="ring")
    run.save(tmp_path / "run.json")
    again = Run.load(tmp_path / "run.json")
    assert Config.facts(again) == run.facts == again.facts


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sizes": []}, r"sizes is \[\], but it must be a list of whole numbers from 1 to"),
        ({"sizes": [0]}, "sizes is"),
        ({"sizes": [4096.0]}, "sizes is"),
        ({"sizes": 4096}, "such as 4096,65536"),
        ({"algorithm": "tree"}, "one of gloo, ring, naive"),
        ({"algorithm": "naive", "collective": "all_gather"}, "there is no naive all_gather"),
        ({"repeats": 0}, "repeats is 0"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)


def test_more_than_the_memory_holds_is_a_sentence():
    with pytest.raises(ValueError, match="32 ranks of 268435456 bytes each need too much memory"):
        Config(sizes=[256 << 20]).check_world_size(32)
    Config(sizes=[256 << 20]).check_world_size(4)


@pytest.mark.thorough
def test_the_lessons_line_for_a_cluster():
    """Under torchrun, on this host: the same bytes as on the pool, and its clock."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dpviz"]
    options = ["run", "all_reduce", "--world-size", "2", "--algorithm", "ring", "--sizes", "4096,1048576", "--json"]
    done = subprocess.run([*torchrun, *options], capture_output=True, text=True, timeout=120, check=True)
    facts = json.loads(done.stdout)["facts"]
    assert facts["equal"] == [True, True]
    expected = launched(2, sizes=[4096, 1 << 20], algorithm="ring").facts["bytes_over_payload"]
    assert facts["bytes_over_payload"] == expected
