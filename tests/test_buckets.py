"""The question of buckets: their sizes, the gradients, the bytes, the timeline, and who is waited for. Case 13."""

import dataclasses
import json
import subprocess
import sys

import pytest

from dpviz.experiments.buckets import experiment
from dpviz.questions.buckets import MIB, Config
from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import launch
from dpviz.records import Run

QUICK = {"layers": 8, "width": 64, "batch": 8}  # layers of 16 KiB
MIBS = {"layers": 8, "width": 512, "batch": 8}  # layers of 1 MiB


def run(world_size=2, **fields):
    config = Config(**{"repeats": 1, **fields})
    return launch(experiment, config, world_size=world_size, timeout=30, on_print=lambda *_: None)


def facts(world_size=2, **fields):
    return run(world_size, **fields).facts


def mib(sizes):
    return [size / MIB for size in sizes]


class TestSizes:
    def test_13_a_cap_of_3_gives_3_3_2_after_the_first_iteration(self):
        found = facts(**MIBS, bucket_cap_mb=3)
        assert found["bucket_bytes"] == [3 * MIB, 3 * MIB, 2 * MIB]
        assert found["first_iteration_bucket_bytes"] == [8 * MIB]  # one bucket, whatever the cap
        assert found["all_reduces"] == 3

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"default_cap": True}, [1, 7]),  # no cap given: the first bucket is a small one
            ({"bucket_cap_mb": 25}, [8]),  # the same cap given, and it is not
            ({"bucket_cap_mb": 0.5}, [1] * 8),  # a parameter larger than its cap is not split
            ({"bucket_cap_mb": 1024}, [8]),
        ],
    )
    def test_the_cap_and_what_comes_of_it(self, fields, expected):
        assert mib(facts(**MIBS, **fields)["bucket_bytes"]) == expected

    def test_a_bucket_may_exceed_its_cap(self):
        found = facts(layers=6, width=512, batch=8, dtype="float64", bucket_cap_mb=3)  # layers of 2 MiB
        assert mib(found["bucket_bytes"]) == [4, 4, 4]

    def test_find_unused_parameters_keeps_the_first_buckets(self):
        found = facts(**MIBS, bucket_cap_mb=3, find_unused_parameters=True)
        # filled from the first layer on and sent from the last one: so the remainder is sent first
        assert mib(found["first_iteration_bucket_bytes"]) == mib(found["bucket_bytes"]) == [2, 3, 3]

    def test_small_tensors_fill_buckets_of_their_own_under_a_small_cap(self):
        found = facts(**QUICK, small_tensors=20, bucket_cap_mb=0.001)
        assert sorted(found["bucket_bytes"]) == [4096] * 20 + [16384] * 8
        assert facts(**QUICK, small_tensors=20, bucket_cap_mb=1)["bucket_bytes"] == [4096 * 20 + 16384 * 8]


STEPS = [
    {"implementation": "torch"},
    {"implementation": "per_tensor"},
    {"implementation": "flat"},
    {"implementation": "bucketed"},
    {"gradient_as_bucket_view": True},
    {"static_graph": True},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "unused_on": 1},
    {"find_unused_parameters": True, "backwards": True},
    {"default_cap": True},
]


@pytest.mark.parametrize("fields", STEPS, ids=str)
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_gradient_is_that_of_one_process(fields, world_size):
    found = facts(world_size, **QUICK, **fields, bucket_cap_mb=0.02, small_tensors=5, dtype="float64")
    assert found["gradients_equal"] and found["ranks_identical"]
    assert found["max_rel_error"] < 1e-12
    assert sum(found["bucket_bytes"]) == found["gradient_bytes"] == 8 * 64 * 64 * 8 + 5 * 4096


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_every_dtype_and_for_one_rank(dtype):
    assert facts(**QUICK, dtype=dtype)["gradients_equal"]
    alone = facts(1, **QUICK, dtype=dtype)
    assert alone["gradients_equal"] and alone["overlap_fraction"] is None and alone["wire_bytes"] == [0]


@pytest.mark.parametrize("fields", STEPS, ids=str)
@pytest.mark.parametrize("world_size", [2, 3])
def test_bytes_are_as_predicted(fields, world_size):
    found = facts(world_size, **QUICK, **fields, bucket_cap_mb=0.02)
    assert found["wire_bytes"] == found["wire_bytes_predicted"]
    bitmap = fields.get("find_unused_parameters", False)  # of the parameters that were used, one all-reduce more
    assert found["all_reduces"] == len(found["bucket_bytes"]) + bitmap


def test_bytes_counted_where_the_kernel_does_not_tell(monkeypatch):
    monkeypatch.setenv("DPVIZ_WIRE", "counted")
    found = facts(**QUICK, bucket_cap_mb=0.02)
    assert found["wire_bytes"] == found["wire_bytes_predicted"]
    assert found["framing_bytes_predicted"] == [0, 0]


def test_without_find_unused_parameters_a_branch_that_one_rank_leaves_out_stops_it():
    config = Config(**QUICK, unused_on=1, bucket_cap_mb=0.02)
    with pytest.raises(RankError):
        launch(experiment, config, world_size=2, timeout=4)


def test_under_no_sync_nothing_is_sent_and_ranks_keep_their_own_gradients():
    found = facts(**QUICK, no_sync=True)
    assert found["all_reduces"] == 0 and found["wire_bytes"] == found["wire_bytes_predicted"] == [0, 0]
    assert found["bucket_bytes"] == [] and not found["ranks_identical"] and not found["gradients_equal"]


def test_ranks_that_differ_are_not_equal_to_one_process_even_where_the_first_one_is():
    done = run(**QUICK)
    done.results[1]["digest"] = "another"
    found = Config.facts(done)
    assert found["max_rel_error"] == done.facts["max_rel_error"] < 1e-5
    assert done.facts["gradients_equal"] and not found["gradients_equal"] and not found["ranks_identical"]


def test_gradients_as_bucket_views_halve_what_is_held():
    held = [facts(**QUICK, gradient_as_bucket_view=view) for view in (False, True)]
    assert [one["gradients_share_buckets"] for one in held] == [False, True]
    assert [one["held_bytes"][0] // one["gradient_bytes"] for one in held] == [2, 1]


@pytest.mark.quiet
class TestTimes:
    def test_a_timeline_is_consistent(self):
        done = run(3, **QUICK, bucket_cap_mb=0.02)
        for result in done.results:
            (data, forward, backward), rest = result["timeline"][:3], result["timeline"][3:]
            assert data.end_s == forward.start_s <= forward.end_s == backward.start_s <= 0 < backward.end_s
            assert [event.lane for event in rest] == [f"bucket {i // 2}" for i in range(len(rest))]
            for bucket in result["buckets"]:
                moments = [bucket[f"{name}_s"] for name in ("ready", "handed", "start", "end", "done")]
                assert [backward.start_s, *moments, backward.end_s] == sorted(
                    [backward.start_s, *moments, backward.end_s]
                )
        assert max(result["timeline"][2].start_s for result in done.results) == 0  # the latest start of backward

    def test_the_numbers_add_up(self):
        found = facts(**QUICK, repeats=3)
        assert found["exposed_s"] == pytest.approx(found["backward_s"] - found["compute_s"])
        for name in ("backward", "compute", "exposed", "communication", "step"):
            least, most = found[f"{name}_range_s"]
            assert least <= most
        assert found["backward_range_s"][0] <= found["backward_s"] <= found["backward_range_s"][1]
        assert found["step_s"] > found["backward_s"] > 0 and found["communication_s"] > 0
        assert 0 <= found["overlap_fraction"] <= 1
        assert found["clock"] == "one host, one monotonic clock" and found["clock_uncertainty_s"] == 0

    @pytest.mark.parametrize("slow_rank", [0, 2])
    def test_a_straggler_is_found_by_measurement(self, slow_rank):
        found = facts(3, **QUICK, slow_rank=slow_rank, slow_ms=80)
        assert found["waits_for"] == slow_rank
        assert found["lateness_s"][slow_rank] == pytest.approx(0.08, rel=0.5)
        assert found["step_s"] > 0.08 > found["backward_s"]  # its backward is no longer, but all begin it later

    def test_nobody_is_waited_for_where_all_come_together(self):
        settings = {"layers": 8, "width": 512, "batch": 128}
        # Whatever else runs here may hold a rank up, for once
        assert any(facts(2, **settings)["waits_for"] is None for _ in range(3))

    def test_a_bucket_that_is_ready_waits_for_its_turn(self):
        """The forward uses the last built layer first: all are ready before bucket 0, and none has been sent."""
        done = run(**QUICK, bucket_cap_mb=0.001, backwards=True, find_unused_parameters=True)
        assert done.facts["ready_in_order"] is False
        buckets = done.results[0]["buckets"]
        assert min(b["handed_s"] for b in buckets) >= max(b["ready_s"] for b in buckets)
        assert facts(**QUICK, bucket_cap_mb=0.001, backwards=True)["ready_in_order"]  # rebuilt in the order of use


def test_a_run_can_be_saved_and_loaded(tmp_path):
    done = run(**QUICK)
    done.save(tmp_path / "run.json")
    loaded = Run.load(tmp_path / "run.json")
    assert loaded.results[1]["timeline"] == [dataclasses.asdict(event) for event in done.results[1]["timeline"]]
    assert loaded.facts == done.facts


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"bucket_cap_mb": 0}, "bucket_cap_mb is 0, but it must be a number from 0.001 to 1024"),
        ({"bucket_cap_mb": -3}, "bucket_cap_mb is -3"),
        ({"bucket_cap_mb": 1e9}, "bucket_cap_mb is 1000000000.0"),
        ({"layers": 0}, "layers is 0"),
        ({"static_graph": True, "no_sync": True}, "static_graph and no_sync are both true.*Choose one"),
        ({"implementation": "flat", "static_graph": True}, "static_graph is DDP's, but implementation is flat"),
        ({"implementation": "flat", "unused_on": 0}, "unused_on is DDP's"),
        ({"layers": 1, "unused_on": 0}, "Give 2 or more layers"),
        ({"implementation": "zero"}, "one of torch, per_tensor, flat, bucketed"),
        ({"slow_ms": -1}, "slow_ms is -1"),
        ({"layers": 64, "width": 2048}, "64 layers of 2048 x 2048 in float32 are 1024 MiB .* Give fewer layers"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)


@pytest.mark.parametrize("name", ["slow_rank", "unused_on"])
def test_a_rank_that_does_not_exist_is_a_sentence(name):
    with pytest.raises(ValueError, match=f"{name} is 2, but there are 2 ranks, from 0 to 1"):
        launch(experiment, Config(**{name: 2}), world_size=2)


@pytest.mark.thorough
def test_the_line_of_the_lesson_for_a_cluster():
    """Under torchrun, on this host."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dpviz"]
    options = ["run", "buckets", "--world-size", "2", "--bucket-cap-mb", "3", "--layers", "8", "--batch", "8", "--json"]
    done = subprocess.run([*torchrun, *options], capture_output=True, text=True, timeout=120, check=True)
    answer = json.loads(done.stdout)
    assert answer["environment"]["launcher"] == "torchrun"
    assert answer["facts"]["bucket_bytes"] == [3 * MIB, 3 * MIB, 2 * MIB]
    assert answer["facts"]["gradients_equal"] and answer["facts"]["clock"] == "one host, one monotonic clock"
