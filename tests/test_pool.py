"""The warm pool under everything that goes wrong: who is blamed, how soon, and whether the next launch is right."""

import datetime
import os
import signal
import subprocess
import threading
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from faults import a_missing_collective, a_rank_raises, exit_0_early, mismatched_order, mismatched_shapes, sigstop

import dpviz
from dpviz.ranks import jobs, pool, sources
from dpviz.ranks.launch import launch, start

pytestmark = pytest.mark.quiet


def total(config):
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()


def dies_in_the_middle(config):
    for step in range(1000):
        if dist.get_rank() == 2 and step == 3:
            threading.Timer(0.01, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
        dist.all_reduce(torch.ones(1 << 22))


def all_raise(config):
    raise ValueError("no rank likes this")


def skips(config):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        time.sleep(60)
    dist.all_reduce(torch.ones(5, 2))


def skips_nothing(config):
    for _ in range(3):
        dist.all_reduce(torch.ones(4))


def is_busy_in_ddp(config):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    loss = model(torch.ones(2, 64)).sum()
    while dist.get_rank() == 1:
        pass
    loss.backward()


def says_nothing(config):
    time.sleep(60)


def dies_beside_a_child(config):
    if dist.get_rank() == 1:
        if os.fork() == 0:  # it holds the rank's socket open
            time.sleep(8)
            os._exit(0)
        os._exit(3)
    dist.all_reduce(torch.ones(4))


def real_time_signal(config):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), 40)
    dist.all_reduce(torch.ones(4))


def stays_away_from_a_subgroup(config):
    some = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=1))
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), group=some)
    else:
        time.sleep(60)


FAULTS = [
    # fault, whose, what the report says
    (dies_in_the_middle, [2], "was ended by SIGKILL"),
    (exit_0_early, [1], "exited with status 0"),
    (dies_beside_a_child, [1], "exited with status 3"),
    (real_time_signal, [1], "was ended by signal 40"),
    (a_rank_raises, [1], "rank 0 waited in barrier"),
    (all_raise, [0, 1, 2, 3], "no rank likes this"),
    (skips, [1], "all_reduce of [5, 2]"),
    (a_missing_collective, [3], "rank 3 returned"),
    (sigstop, [1], "rank 1 did not answer"),
    (is_busy_in_ddp, [1], "in is_busy_in_ddp"),
    (mismatched_shapes, [0], "all_reduce of [8]"),
    (mismatched_order, [0], "broadcast of [4]"),
]


@pytest.mark.parametrize(("fault", "guilty", "said"), FAULTS, ids=lambda value: getattr(value, "__name__", None))
def test_a_fault_is_blamed_on_its_rank_and_the_next_launch_is_right(fault, guilty, said):
    launch(total, world_size=4)
    began = time.monotonic()
    with pytest.raises(dpviz.RankError) as caught:
        launch(fault, world_size=4, timeout=1)
    took = time.monotonic() - began
    error = caught.value
    assert error.ranks == guilty, error.report
    assert said in f"{error.why}\n{error.report}"
    assert len(error.report.splitlines()) == 4
    assert took < 2, f"{took:.2f} s\n{error.report}"
    assert launch(total, world_size=4).results == [4.0] * 4


@pytest.mark.parametrize("fault", [skips, dies_in_the_middle])
def test_every_rank_is_placed_at_a_line_of_the_users(fault):
    with pytest.raises(dpviz.RankError) as caught:
        launch(fault, world_size=4, timeout=1)
    placed = [line for line in caught.value.report.splitlines() if "process was ended" not in line]
    assert all("test_pool.py, line" in line for line in placed), caught.value.report


def test_a_collective_of_some_ranks_is_not_compared_with_those_of_all():
    with pytest.raises(dpviz.RankError) as caught:
        launch(stays_away_from_a_subgroup, world_size=4, timeout=3)
    assert "do not agree" not in caught.value.why


def test_ranks_that_go_on_for_ever_are_not_said_to_stay_away():
    def for_ever(config):
        while True:
            dist.all_reduce(torch.ones(1))

    with pytest.raises(dpviz.RankError, match="had neither returned nor said anything for 1 s"):
        launch(for_ever, world_size=4, timeout=0.5)


def test_silence_ends_a_launch_after_twice_the_timeout():
    began = time.monotonic()
    with pytest.raises(dpviz.RankError, match="for 1 s") as caught:
        launch(says_nothing, world_size=2, timeout=0.5)
    assert 1 <= time.monotonic() - began < 2
    assert caught.value.ranks == [0, 1]


def test_the_message_is_the_same_each_time():
    def message(fault):
        with pytest.raises(dpviz.RankError) as caught:
            launch(fault, world_size=4, timeout=1)
        return str(caught.value)

    for fault in (skips, a_rank_raises, exit_0_early):
        first = message(fault)
        launch(skips_nothing, world_size=4)  # a warm group has issued collectives of its own
        assert message(fault) == first
    assert message(skips).startswith(
        "rank 1 did not come to collective 2 (all_reduce of [5, 2]), in which ranks 0, 2 and"
    )


def test_a_traceback_names_the_users_lines_and_none_of_ours():
    with pytest.raises(dpviz.RankError) as caught:
        launch(a_rank_raises, world_size=2)
    error = caught.value
    assert error.kind == "KeyError"
    assert error.frames[-1][2] == "a_rank_raises"
    assert os.path.basename(error.frames[-1][0]) == "faults.py"
    assert 'raise KeyError("planted")' in error.traceback
    assert "dpviz/ranks" not in error.traceback


@pytest.mark.parametrize("world_size", [1, 2, 8, 32, 3])
def test_the_world_size_may_change(world_size):
    job = start(total, world_size=world_size)
    assert job.result().results == [float(world_size)] * world_size


def test_mismatched_shapes_are_found_even_where_every_rank_returns():
    def caught_by_the_user(config):
        try:
            dist.all_reduce(torch.ones(8 if dist.get_rank() == 0 else 4))
        except RuntimeError:
            pass

    with pytest.raises(dpviz.RankError, match="do not agree in collective 1") as caught:
        launch(caught_by_the_user, world_size=4, timeout=1)
    assert caught.value.ranks == [0]


def test_stop_ends_only_its_own_job():
    stopped, kept = start(says_nothing, world_size=4), start(total, world_size=2)
    time.sleep(0.2)
    began = time.monotonic()
    stopped.stop()
    assert time.monotonic() - began < 0.3
    with pytest.raises(dpviz.Stopped):
        stopped.result()
    assert kept.result(10).results == [2.0, 2.0]
    kept.stop()  # too late, and harmless
    assert launch(total, world_size=4).results == [4.0] * 4


def test_a_job_that_waits_for_its_turn_is_stopped_at_once():
    running, waiting = start(says_nothing, world_size=2), start(total, world_size=2)
    began = time.monotonic()
    waiting.stop()
    with pytest.raises(dpviz.Stopped):
        waiting.result(0)
    assert time.monotonic() - began < 0.1
    assert not running.done()
    running.stop()
    assert launch(total, world_size=2).results == [2.0, 2.0]


def test_an_interrupt_ends_the_launch_within_a_second():
    launch(total, world_size=4)
    main = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        launch(says_nothing, world_size=4)
    assert time.monotonic() - began < 1.3
    assert launch(total, world_size=4).results == [4.0] * 4


def test_what_a_rank_has_started_ends_with_it():
    def start_one_and_fail(config):
        child = subprocess.Popen(["sleep", "60"])
        yield child.pid
        if dist.get_rank() == 0:
            raise ValueError("enough")
        time.sleep(60)

    started = []
    with pytest.raises(dpviz.RankError, match="enough"):
        launch(start_one_and_fail, world_size=2, on_record=lambda rank, pid: started.append(pid))
    time.sleep(0.2)
    alive = [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert started and not alive


def test_a_server_that_still_imports_is_not_waited_for():
    server = sources.RankServer()
    server.close()
    assert server.process.returncode == -signal.SIGKILL and not os.path.exists(server.directory)


def test_a_killed_server_is_replaced():
    launch(total, world_size=2)
    os.kill(jobs._owner.pool.source.process.pid, signal.SIGKILL)
    time.sleep(0.2)
    assert launch(total, world_size=2).results == [2.0] * 2
    job = start(says_nothing, world_size=2)
    time.sleep(0.3)
    os.kill(jobs._owner.pool.source.process.pid, signal.SIGKILL)
    with pytest.raises(dpviz.RankError, match="server ended"):
        job.result(5)
    assert launch(total, world_size=2).results == [2.0] * 2


def test_a_killed_idle_rank_is_replaced():
    launch(total, world_size=4)
    os.kill(jobs._owner.pool.pids()[3], signal.SIGKILL)
    time.sleep(0.1)
    assert launch(total, world_size=4).results == [4.0] * 4


def test_a_teardown_that_stalls_is_replaced_by_new_ranks(monkeypatch):
    def will_stall(config):
        dist.destroy_process_group = lambda: time.sleep(100)

    monkeypatch.setattr(pool, "MEET_S", 1)
    launch(will_stall, world_size=3)
    began = time.monotonic()
    assert launch(total, world_size=2).results == [2.0] * 2
    assert 1 < time.monotonic() - began < 3


def test_where_former_groups_met_is_forgotten():
    """Of a group that ranks leave, torch's own removal now and then misses the file."""
    launch(total, world_size=2)
    directory = jobs._owner.pool.source.directory
    missed = os.path.join(directory, "0")
    open(missed, "w").close()
    launch(total, world_size=3)
    assert [name for name in os.listdir(directory) if name.isdigit()] == [str(jobs._owner.pool.groups)]


def test_messages_between_two_ranks_do_not_count_as_collectives():
    """Ranks 0 and 1 have exchanged five messages; rank 1 is the one that does not come."""

    def late_after_messages(config):
        rank = dist.get_rank()
        for _ in range(5):
            if rank == 0:
                dist.send(torch.ones(3), 1)
            elif rank == 1:
                dist.recv(torch.ones(3), 0)
        if rank == 1:
            time.sleep(60)
        dist.all_reduce(torch.ones(2))

    for world_size in (2, 4, 2):  # the recorder still holds what earlier groups of the same name have issued
        launch(skips_nothing, world_size=world_size)
    with pytest.raises(dpviz.RankError, match="rank 1 did not come to collective 1") as caught:
        launch(late_after_messages, world_size=4, timeout=1)
    assert caught.value.ranks == [1]


def test_ranks_that_all_send_first_are_told_so():
    def all_send(config):
        rank, k = dist.get_rank(), dist.get_world_size()
        dist.all_reduce(torch.ones(2))
        dist.send(torch.ones(5), (rank + 1) % k)
        dist.recv(torch.ones(5), (rank - 1) % k)

    with pytest.raises(dpviz.RankError, match="ranks 0, 1 and 2 waited too long in send") as caught:
        launch(all_send, world_size=3, timeout=1)
    assert "waited in send for another rank, after 1 collective" in caught.value.report
