"""launch: what travels, what comes back, and what is put back."""

import importlib.metadata
import os
import random
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time

import numpy
import pytest
import torch
import torch.distributed as dist

import dpviz
from dpviz.ranks import jobs, travel
from dpviz.ranks.launch import launch, start


def rank_and_size(config):
    return dist.get_rank(), dist.get_world_size(), dist.get_backend()


def test_results_come_in_the_order_of_ranks():
    run = launch(rank_and_size, world_size=4)
    assert run.results == [(rank, 4, "gloo") for rank in range(4)]
    assert run.environment.launcher == "pool"
    assert run.experiment == "rank_and_size"


def test_a_warm_launch_asks_no_more_what_cannot_change(monkeypatch):
    launch(rank_and_size, world_size=2)
    before = travel.is_users.cache_info()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: pytest.fail(f"the version of {name} is read again"))
    launch(rank_and_size, world_size=2)
    after = travel.is_users.cache_info()
    assert after.misses == before.misses and after.hits > before.hits


def test_records_stream_while_the_launch_runs():
    def slow(config):
        for step in range(3):
            yield dpviz.Step(step=step, loss=float(dist.get_rank()))
            time.sleep(0.3)
        return "end"

    arrived = []
    run = launch(
        slow, world_size=2, on_record=lambda rank, record: arrived.append((time.monotonic(), rank, record.step))
    )
    ended = time.monotonic()
    assert run.results == ["end", "end"]
    assert [step for _, rank, step in arrived if rank == 1] == [0, 1, 2]
    assert ended - arrived[0][0] > 0.5
    assert run.frame().query("rank == 1")["step"].tolist() == [0, 1, 2]


def test_callbacks_run_in_the_calling_thread_and_their_errors_reach_it():
    def refuse(rank, record):
        assert threading.current_thread() is threading.main_thread()
        raise LookupError("not this record")

    def one(config):
        yield 1

    with pytest.raises(LookupError, match="not this record"):
        launch(one, world_size=2, on_record=refuse)
    assert launch(rank_and_size, world_size=2).results[1][0] == 1


def test_prints_keep_their_order_and_their_rank(capsys):
    def talk(config):
        print("first")
        os.write(2, b"second, past Python\n")
        print("third, no newline", end="")

    run = launch(talk, world_size=2)
    assert run.prints == [["first", "second, past Python", "third, no newline"]] * 2
    assert "[rank 1] second, past Python" in capsys.readouterr().out.splitlines()


def test_too_many_prints_are_cut_and_it_is_said():
    def shout(config):
        for number in range(5000):
            print(number)
        print("x" * 10_000)

    lines = launch(shout, world_size=2, on_print=lambda *_: None).prints[1]
    assert lines[:1000] == [str(number) for number in range(1000)]
    assert lines[1000:] == ["… 4001 more lines not shown"]


def test_a_line_without_end_is_cut_and_costs_no_time():
    def hum(config):
        for _ in range(200):
            print("x" * 100_000, end="", flush=True)
        print("\rprogress 50 %\rprogress 100 %")

    began = time.monotonic()
    lines = launch(hum, world_size=2, on_print=lambda *_: None).prints[0]
    assert time.monotonic() - began < 5
    assert lines == ["x" * 2000 + " … (cut)", "progress 50 %", "progress 100 %"]


def test_a_half_line_is_shown_when_the_launch_fails():
    def fails(config):
        print("last words", end="", flush=True)
        time.sleep(60)

    heard = []
    with pytest.raises(dpviz.RankError):
        launch(fails, world_size=2, timeout=0.5, on_print=lambda rank, line: heard.append((rank, line)))
    assert sorted(heard) == [(0, "last words"), (1, "last words")]


def test_equal_seeds_everywhere_and_different_ones_on_request():
    def draw(config):
        first = torch.rand(1).item(), random.random(), numpy.random.rand()
        dpviz.seed_by_rank(7)
        return first, (torch.rand(1).item(), random.random(), numpy.random.rand())

    for _ in range(2):  # a warm rank starts again, too
        zero, one = launch(draw, world_size=2).results
        assert zero[0] == one[0]
        assert all(a != b for a, b in zip(zero[1], one[1], strict=True))
    assert launch(draw, world_size=2).results[1] == one


def test_a_warm_rank_forgets_settings_of_the_last_experiment():
    def disturb(config):
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.set_grad_enabled(False)
        torch.use_deterministic_algorithms(True)
        os.environ["LEFT_BEHIND"] = "1"
        os.chdir("/")

    def ask(config):
        settings = torch.ones(1).dtype, torch.get_num_threads(), torch.is_grad_enabled()
        return *settings, torch.are_deterministic_algorithms_enabled(), "LEFT_BEHIND" in os.environ, os.getcwd()

    launch(disturb, world_size=2)
    assert launch(ask, world_size=2).results[0] == (torch.float32, 1, True, False, False, os.getcwd())


def test_a_thread_that_outlives_its_launch_does_not_speak_in_the_next():
    def leave_a_thread(config):
        def speak():
            while True:
                time.sleep(0.05)
                print("from the past", flush=True)

        threading.Thread(target=speak, daemon=True).start()

    def wait(config):
        time.sleep(0.3)

    launch(leave_a_thread, world_size=2, on_print=lambda *_: None)
    assert launch(wait, world_size=2).prints == [[], []]


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_experiment_that_destroys_the_group_is_told_so(world_size):
    with pytest.raises(
        (ValueError, dpviz.RankError), match="has destroyed the process group. Leave that to the launcher"
    ):
        launch(lambda config: dist.destroy_process_group(), world_size=world_size)
    assert launch(rank_and_size, world_size=world_size).results[0] == (0, world_size, "gloo")
    assert "GLOO_SOCKET_IFNAME" not in os.environ


def test_temporary_files_of_ranks_are_gone_with_their_server():
    def make(config):
        return tempfile.mkdtemp()

    made = launch(make, world_size=2).results
    assert all(os.path.isdir(folder) for folder in made)
    jobs.close()
    assert not any(os.path.exists(folder) for folder in made)


def test_the_rendezvous_may_lie_anywhere(tmp_path, monkeypatch):
    folder = "with space, a mark # and " + "x" * 100
    jobs.close()
    (tmp_path / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    assert launch(rank_and_size, world_size=2).results[1][0] == 1
    jobs.close()
    assert not any((tmp_path / folder).iterdir())


def test_a_current_directory_that_is_gone_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ValueError, match="the current directory has been removed"):
        launch(rank_and_size, world_size=2)


def test_enums_and_classes_keep_their_identity():
    def is_the_same(config):
        return config["reduce"] is dist.ReduceOp.SUM or config["reduce"] == dist.ReduceOp.SUM, config[
            "step"
        ] is dpviz.Step

    assert (
        launch(is_the_same, {"reduce": dist.ReduceOp.SUM, "step": dpviz.Step}, world_size=2).results
        == [(True, True)] * 2
    )


def test_a_function_may_use_dpviz_by_its_short_name():
    dp = dpviz

    def uses_it(config):
        return dp.Step(step=1).step, dp is dpviz

    assert launch(uses_it, world_size=2).results == [(1, True)] * 2


def test_an_edited_helper_module_means_fresh_ranks(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    helper = tmp_path / "helper_of_this_test.py"
    helper.write_text("def value(config):\n    return 1\n")
    import helper_of_this_test

    assert launch(helper_of_this_test.value, world_size=2).results == [1, 1]
    helper.write_text("def value(config):\n    return 2\n")
    os.utime(helper, (time.time() + 5, time.time() + 5))
    assert launch(helper_of_this_test.value, world_size=2).results == [2, 2]


def test_what_cannot_travel_is_a_sentence():
    lock = threading.Lock()

    def holds(config):
        return lock

    with pytest.raises(ValueError, match="holds cannot be sent to the ranks.*lock.*inside the function"):
        launch(holds, world_size=2)
    assert launch(rank_and_size, world_size=2).results[1][0] == 1


def test_what_cannot_come_back_is_a_sentence():
    def returns_a_lock(config):
        return threading.Lock()

    def yields_a_socket(config):
        yield socket.socket()

    with pytest.raises(dpviz.RankError, match="returned cannot be sent back.*Give numbers"):
        launch(returns_a_lock, world_size=2)
    with pytest.raises(dpviz.RankError, match="yielded cannot be sent back"):
        launch(yields_a_socket, world_size=2)
    assert launch(rank_and_size, world_size=2).results[1][0] == 1


@pytest.mark.parametrize("world_size", [0, -1, 2.5, "four", 10_000, True, None])
def test_a_wrong_world_size_is_a_sentence(world_size):
    with pytest.raises(ValueError, match="world_size is .*, but it must be a whole number from 1 to 32"):
        launch(rank_and_size, world_size=world_size)


@pytest.mark.parametrize("timeout", [0, -3, "soon", float("nan"), float("inf"), True])
def test_a_wrong_timeout_is_a_sentence(timeout):
    with pytest.raises(ValueError, match="timeout is .* number of seconds"):
        launch(rank_and_size, world_size=2, timeout=timeout)


def test_a_called_function_is_not_an_experiment():
    with pytest.raises(ValueError, match="give the function itself, without calling it"):
        launch(3, world_size=2)


def test_a_config_class_is_not_a_config():
    from dpviz.questions.equivalence import Config

    with pytest.raises(ValueError, match=r"the config is the class Config. Make one of it: Config\(\)"):
        launch(rank_and_size, Config, world_size=2)


class TestOneRankRunsHere:
    def test_in_this_process(self):
        run = launch(lambda config: (os.getpid(), dist.get_rank(), dist.get_world_size()), world_size=1)
        assert run.results == [(os.getpid(), 0, 1)]
        assert run.environment.launcher == "in-process"
        assert not dist.is_initialized()

    def test_what_it_changes_is_put_back(self):
        def disturb(config):
            torch.set_default_dtype(torch.float64)
            torch.manual_seed(99)
            random.seed(99)

        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        state, threads, interface = random.getstate(), torch.get_num_threads(), os.environ.get("GLOO_SOCKET_IFNAME")
        launch(disturb, world_size=1)
        assert torch.equal(torch.rand(3), expected)
        assert random.getstate() == state
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_num_threads() == threads
        assert os.environ.get("GLOO_SOCKET_IFNAME") == interface

    def test_its_exception_is_the_users_own(self):
        def fails(config):
            raise KeyError("mine")

        with pytest.raises(KeyError, match="mine"):
            launch(fails, world_size=1)
        assert not dist.is_initialized()
        assert launch(rank_and_size, world_size=1).results == [(0, 1, "gloo")]


def test_without_fork_ranks_are_spawned(monkeypatch):
    """The stand-in for platforms without a safe fork, in an interpreter of its own: results, prints, blame, and
    nothing left.
    """
    code = """
        import os, signal, dpviz, psutil
        import torch, torch.distributed as dist

        def total(config):
            print("hello")
            x = torch.ones(2)
            dist.all_reduce(x)
            return x[0].item()

        def dies(config):
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.barrier()

        run = dpviz.launch(total, world_size=2)
        assert run.results == [2.0, 2.0] and run.prints == [["hello"]] * 2, run
        assert run.environment.start_method == "spawn"
        try:
            dpviz.launch(dies, world_size=2, timeout=5)
        except dpviz.RankError as error:
            assert error.ranks == [1] and "SIGKILL" in error.why, error.report
        assert dpviz.launch(total, world_size=3).results == [3.0] * 3
        from dpviz.ranks import jobs
        jobs.close()
        assert not psutil.Process().children()
        print("as expected")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "DPVIZ_START_METHOD": "spawn"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.endswith("as expected\n"), done.stdout + done.stderr


def test_jobs_of_several_threads_take_turns():
    asked = [start(rank_and_size, world_size=size) for size in (2, 3, 2, 4)]
    assert [len(job.result(30).results) for job in asked] == [2, 3, 2, 4]


def test_an_experiment_that_does_not_fit_its_config_is_a_sentence():
    from dpviz.questions.equivalence import Config

    with pytest.raises(
        ValueError, match="rank_and_size ran, but does not return or yield what the facts of equivalence"
    ):
        launch(rank_and_size, Config(), world_size=2)
    assert launch(rank_and_size, {"mine": 1}, world_size=2).config == {"mine": 1}


def test_ranks_old_and_new_number_their_collectives_alike():
    """More of them than the recorder keeps, in a group that ranks of an earlier one and a fresh one have joined."""

    def many(count):
        for i in range(count):
            dist.all_reduce(torch.ones(1 + i % 7))

    launch(many, 10, world_size=2)
    run = launch(many, 400, world_size=3)
    assert run.collectives[0][-1].number == run.collectives[2][-1].number == 400
