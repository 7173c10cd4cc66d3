"""dp.Link: an interface a rank, shaped by the kernel; and what happens where there can be none."""

import json
import os
import socket
import statistics
import subprocess
import sys
import time

import psutil
import pytest
import torch
import torch.distributed as dist

import dpviz
from dpviz import Link
from dpviz.questions.base import WrongValue
from dpviz.ranks import jobs, sources
from dpviz.ranks.launch import launch, start

pytestmark = pytest.mark.quiet

SUPPORT = Link.supported()
linked = pytest.mark.skipif(not SUPPORT, reason=f"no links here: {SUPPORT.reason}")
MIB = 1 << 20


def timed(config):
    """Yield (start, end) of `config["repeats"]` all-reduces of 2 MiB, the first of them for nothing."""
    x = torch.zeros(config.get("bytes", 2 * MIB) // 4)
    dist.all_reduce(x)
    for _ in range(config["repeats"]):
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(x)
        yield begun, time.perf_counter()


def seconds(run):
    """From the last rank's start to the last rank's end, of each repeat."""
    repeats = zip(*run.records, strict=True)
    return [max(end for _, end in repeat) - max(begun for begun, _ in repeat) for repeat in repeats]


@linked
def test_a_link_five_times_slower_takes_five_times_as_long():
    fast, slow = (launch(timed, {"repeats": 5}, world_size=2, link=Link(gbps=gbps)) for gbps in (0.5, 0.1))
    ratio = statistics.median(seconds(slow)) / statistics.median(seconds(fast))
    assert 4 < ratio < 6
    assert statistics.median(seconds(slow)) > 0.95 * 2 * MIB * 8 / 0.1e9  # nor is anything faster than the rate
    assert fast.environment.link == "link 0.5 Gb/s" and fast.environment.link_gbps == 0.5
    assert slow.environment.line().endswith("link 0.1 Gb/s")


@linked
def test_eight_ranks_keep_up_with_their_links():
    """The least of five, since what else runs here only adds. Packets that the kernel must cut made it 1.7 times."""
    run = launch(timed, {"repeats": 5, "bytes": 8 * MIB}, world_size=8, link=Link(gbps=0.5))
    assert 0.97 < min(seconds(run)) / (2 * 7 / 8 * 8 * MIB * 8 / 0.5e9) < 1.25


@linked
def test_bytes_are_counted_though_a_slow_link_still_sends_them():
    def one_way(config):
        x = torch.zeros(MIB // 4)
        dist.send(x, 1) if dist.get_rank() == 0 else dist.recv(x, 0)

    run = launch(one_way, world_size=2, link=Link(gbps=0.02))  # 0.4 s, most of it after send has returned
    assert MIB <= run.wire[0].sent < 1.01 * MIB


@linked
def test_the_bytes_are_those_of_the_loopback():
    sent = [
        [wire.sent for wire in launch(timed, {"repeats": 2}, world_size=4, link=link).wire]
        for link in (None, Link(gbps=1.0))
    ]
    assert max(sent[1]) == pytest.approx(max(sent[0]), rel=1e-3)


def one_with_all(config):
    """Rank 0 receives 1 MiB from each other rank at once, or sends it to each; return the seconds that it took."""
    mine, x = dist.get_rank(), torch.zeros(MIB // 4)
    others = range(1, dist.get_world_size())
    for _ in range(2):  # the first makes the connections
        dist.barrier()
        begun = time.perf_counter()
        if config == "sends":
            requests = [dist.isend(x, rank) for rank in others] if mine == 0 else [dist.irecv(x, 0)]
        else:
            requests = [dist.irecv(torch.empty_like(x), rank) for rank in others] if mine == 0 else [dist.isend(x, 0)]
        for request in requests:
            request.wait()
        dist.barrier()
    return time.perf_counter() - begun


@linked
@pytest.mark.parametrize("direction", ["sends", "receives"])
def test_a_rank_is_limited_in_each_direction_whoever_it_talks_to(direction):
    run = launch(one_with_all, direction, world_size=4, link=Link(gbps=0.2))
    assert run.results[0] > 0.9 * 3 * MIB * 8 / 0.2e9


@linked
def test_the_rate_changes_under_a_running_launch():
    def turn_down(rank, record):
        if rank == 0 and not turned:
            turned.append(record)
            job.change_link(Link(gbps=0.1))

    turned = []
    job = start(timed, {"repeats": 6}, world_size=2, link=Link(gbps=1.0), on_record=turn_down)
    run = job.result(60)
    times = seconds(run)
    assert statistics.median(times[2:]) > 4 * times[0]
    assert run.environment.link == "link 1 Gb/s, then link 0.1 Gb/s"
    assert run.environment.link_gbps is None
    assert launch(timed, {"repeats": 1}, world_size=2, link=Link(gbps=1.0)).environment.link_gbps == 1.0


@linked
def test_a_change_that_the_server_refuses_is_told(monkeypatch):
    def ask_for_the_impossible(rank, record):
        if rank == 0 and not asked:
            asked.append(record)
            job.change_link(Link(gbps=2.0))

    ask, asked = sources.RankServer.shape, []
    monkeypatch.setattr(
        sources.RankServer,
        "shape",
        lambda self, slots, link: ask(self, slots if link.gbps < 2 else "many", link),
    )
    job = start(timed, {"repeats": 3}, world_size=2, link=Link(gbps=1.0), on_record=ask_for_the_impossible)
    with pytest.raises(dpviz.RankError, match="the ranks' network could not be given the link: TypeError"):
        job.result(60)
    assert launch(timed, {"repeats": 1}, world_size=2, link=Link(gbps=1.0)).environment.link_gbps == 1.0


@linked
def test_changing_a_link_of_a_launch_without_one_is_a_sentence():
    job = start(timed, {"repeats": 1}, world_size=2)
    with pytest.raises(ValueError, match="launch it with link="):
        job.change_link(Link(gbps=1.0))
    job.result(60)
    job = start(timed, {"repeats": 1}, world_size=2, link=Link(gbps=1.0))
    job.result(60)
    job.change_link(Link(gbps=0.5))  # it has ended: nothing happens


def surroundings(config):
    seen = sorted(name for _, name in socket.if_nameindex())
    reached = []
    for address in config:
        try:
            socket.create_connection(address, timeout=0.5).close()
            reached.append(address)
        except OSError:
            pass
    return seen, reached, os.environ["GLOO_SOCKET_IFNAME"], os.getuid()


@linked
def test_ranks_reach_nothing_outside_and_the_own_network_stays_as_it_was():
    before = os.readlink("/proc/self/ns/net"), socket.if_nameindex()
    with socket.create_server(("127.0.0.1", 0)) as here:
        addresses = [here.getsockname(), ("1.1.1.1", 53)]
        linked_run = launch(surroundings, addresses, world_size=3, link=Link(gbps=1.0))
        plain_run = launch(surroundings, addresses, world_size=3)
    assert (os.readlink("/proc/self/ns/net"), socket.if_nameindex()) == before
    assert linked_run.results == [(["lo", "nic"], [], "nic", os.getuid())] * 3
    assert {(tuple(reached), name) for _, reached, name, _ in plain_run.results} == {((), "lo")}


def descriptors(config):
    dist.all_reduce(torch.ones(4))
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@linked
def test_going_back_and_forth_leaves_nothing_behind():
    server, counts = None, []
    for gbps in (1.0, None, 0.5, None) * 10:
        run = launch(descriptors, world_size=4, link=Link(gbps=gbps) if gbps else None)
        server = psutil.Process(jobs._owner.pool.source.process.pid)
        counts.append([max(of_ranks) for of_ranks in zip(*run.results, strict=True)] + [server.num_fds()])
    first, last = ([max(column) for column in zip(*part, strict=True)] for part in (counts[:20], counts[-20:]))
    assert all(end <= begin for begin, end in zip(first, last, strict=True)), (first, last)
    assert server.num_threads() == 1


@linked
def test_a_rank_that_died_on_its_link_is_followed_by_one_on_the_same_link():
    def dies(config):
        if dist.get_rank() == 1:
            os._exit(3)
        dist.all_reduce(torch.ones(4))

    def address(config):
        dist.all_reduce(torch.ones(4))
        import pyroute2

        with pyroute2.IPRoute() as net:
            return [a.get_attr("IFA_ADDRESS") for a in net.get_addr(label="nic")]

    first = launch(address, world_size=3, link=Link(gbps=1.0)).results
    for _ in range(3):
        with pytest.raises(dpviz.RankError) as caught:
            launch(dies, world_size=3, link=Link(gbps=1.0), timeout=5)
        assert caught.value.ranks == [1]
        assert launch(address, world_size=3, link=Link(gbps=1.0)).results == first
    assert first == [["10.0.0.1"], ["10.0.0.2"], ["10.0.0.3"]]


ANOTHER = """
import dpviz, json, os
from dpviz.ranks import jobs, sources

def total(config):
    import torch, torch.distributed as dist
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item(), os.readlink("/proc/thread-self/ns/net")

run = dpviz.launch(total, world_size=3, link=dpviz.Link(gbps=1.0))
print(json.dumps([run.results, jobs._owner.pool.source.process.pid]), flush=True)
input()
"""


def namespaces():
    found = set()
    for process in psutil.process_iter():
        try:
            found.add(os.readlink(f"/proc/{process.pid}/ns/net"))
        except OSError:
            pass
    return found


@linked
def test_two_kernels_have_a_network_each_and_the_kernel_takes_it_away():
    others = [
        subprocess.Popen([sys.executable, "-c", ANOTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [json.loads(other.stdout.readline()) for other in others]
    networks = {network for results, _ in answers for _, network in results}
    networks |= {os.readlink(f"/proc/{server}/ns/net") for _, server in answers}
    assert [[total for total, _ in results] for results, _ in answers] == [[3.0] * 3] * 2
    assert len(networks) == 8 and os.readlink("/proc/self/ns/net") not in networks
    others[0].kill()
    others[1].communicate("")
    for other in others:
        other.wait(10)
        other.stdout.close()
        other.stdin.close()
    deadline = time.monotonic() + 10
    while networks & namespaces() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not networks & namespaces()


@pytest.mark.parametrize(
    "given, said",
    [
        ({"gbps": 0}, "gbps is 0, but it must be a number from 0.001 to 34. For no limit leave the link out"),
        ({"gbps": -1.0}, "gbps is -1.0, but"),
        ({"gbps": 1e9}, "gbps is 1000000000.0, but"),
        ({"gbps": float("nan")}, "gbps is nan, but"),
        ({"gbps": "fast"}, "gbps is 'fast', but"),
        ({"gbps": True}, "gbps is True, but"),
        ({"latency_us": -1}, "latency_us is -1, but it must be a number from 0 to 1e"),
    ],
)
def test_a_wrong_link_is_a_sentence(given, said):
    with pytest.raises(WrongValue) as caught:
        Link(**given)
    assert str(caught.value).startswith(said)


def test_what_is_no_link_is_a_sentence():
    with pytest.raises(WrongValue, match=r"link is 1.0, but it must be a Link, such as dpviz.Link\(gbps=1.0\)"):
        launch(surroundings, [], world_size=2, link=1.0)


def test_under_torchrun_a_link_is_refused(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(WrongValue, match="these ranks are torchrun's"):
        launch(surroundings, [], world_size=2, link=Link(gbps=1.0))


@pytest.mark.skipif(not SUPPORT or SUPPORT.latency, reason="this kernel can delay packets, or there are no links")
def test_a_latency_that_the_kernel_cannot_make_is_a_sentence():
    with pytest.raises(WrongValue, match="latency_us is 50, but this kernel cannot delay packets"):
        launch(surroundings, [], world_size=2, link=Link(gbps=1.0, latency_us=50))


@pytest.mark.skipif(not SUPPORT.latency, reason="this kernel cannot delay packets (it lacks netem)")
def test_a_latency_is_felt():
    def short(latency_us):
        link = Link(gbps=10.0, latency_us=latency_us)
        return statistics.median(seconds(launch(timed, {"repeats": 5, "bytes": 1024}, world_size=2, link=link)))

    assert short(5000) > short(0) + 2 * 0.005  # two steps, each a delay


def test_alone_a_rank_needs_no_link():
    assert launch(lambda config: dist.get_world_size(), world_size=1, link=Link(gbps=1.0)).environment.link_gbps is None


# -- where there can be none

REFUSED = """
import errno, json
from dpviz.ranks import link, network

class Refusing:
    def __getattr__(self, name):
        import ctypes
        def refuse(*arguments):
            ctypes.set_errno(errno.ENOSPC)
            return -1
        return refuse

network._libc = Refusing()
print(json.dumps(link.found()))
"""


@linked
def test_a_refusal_says_what_was_refused():
    """Where user namespaces are switched off the system answers "no space left on device"."""
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=60, check=True)
    found = json.loads(done.stdout)
    assert found == {"reason": "network namespaces are refused (No space left on device)", "latency": False}


@linked
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "raise IndexError"])
def test_a_trial_that_does_not_survive_is_a_refusal(end):
    """A sandbox may kill what enters a namespace."""
    code = f"""
import json, os
from dpviz.ranks import link, network

def enter():
    {end}

network.enter = enter
print(json.dumps(link.found()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["reason"] == "the process that tried it ended without an answer"


@linked
def test_where_there_is_room_for_some_interfaces_only_plain_launches_go_on():
    """The system may allow fewer namespaces than there are ranks."""
    limited = "echo 6 > /proc/sys/user/max_net_namespaces && exec " + sys.executable
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", f"{limited} -m dpviz run equivalence --world-size 8 --json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "max_net_namespaces" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"the limit cannot be set here: {done.stderr.strip()}")
    assert json.loads(done.stdout)["environment"]["world_size"] == 8


@pytest.fixture
def without_links(monkeypatch):
    monkeypatch.setenv("DPVIZ_LINK", "none")


def test_without_links_a_launch_runs_over_the_loopback_and_says_so(without_links):
    support = Link.supported()
    assert not support and "DPVIZ_LINK" in support.reason
    run = launch(timed, {"repeats": 1}, world_size=2, link=Link(gbps=0.001))
    assert run.environment.link == "loopback (no link possible here)"
    assert run.environment.link_gbps is None
    assert seconds(run)[0] < 0.5 * 2 * MIB * 8 / 0.001e9
    assert launch(timed, {"repeats": 1}, world_size=2).environment.link == "loopback"


def test_without_links_a_panel_disables_the_slider_and_says_why(without_links):
    from dpviz.figures import equivalence
    from dpviz.questions.equivalence import Config

    panel = dpviz.panel(
        "dpviz.experiments.equivalence:experiment",
        Config(),
        figure=equivalence,
        controls={"world_size": (2, 4), "link_gbps": (0.1, 10), "link_latency_us": (0, 1000)},
        link=Link(gbps=1.0),
        world_size=2,
    )
    assert panel.controls["link_gbps"].disabled and panel.controls["link_latency_us"].disabled
    assert "DPVIZ_LINK=none has turned them off" in str([child.value for child in panel.children[1].children[-1:]])
    assert panel.run.environment.link == "loopback (no link possible here)"


@linked
def test_a_panels_slider_sets_the_rate():
    from dpviz.figures import equivalence
    from dpviz.questions.equivalence import Config

    panel = dpviz.panel(
        "dpviz.experiments.equivalence:experiment",
        Config(),
        figure=equivalence,
        controls={"world_size": (2, 4), "link_gbps": (0.1, 10)},
        world_size=2,
    )
    assert panel.run.environment.link_gbps == 1.0
    panel.controls["link_gbps"].value = 0.5
    panel._newest.wait()
    assert panel.run.environment.link_gbps == 0.5
    assert panel.children[1].children[-1].value.count("cannot") == 0
    assert "link_gbps=0.5" in repr(panel)


# -- the command line


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dpviz", "run", "equivalence", "--world-size", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


@linked
def test_the_command_line_takes_a_link():
    done = command("--link-gbps", "0.5", "--json")
    assert json.loads(done.stdout)["environment"]["link_gbps"] == 0.5
    assert done.stderr == ""


def test_the_command_line_says_where_there_is_none():
    done = command("--link-gbps", "1", "--json", DPVIZ_LINK="none")
    assert json.loads(done.stdout)["environment"]["link"] == "loopback (no link possible here)"
    assert done.stderr == (
        "no link is possible here (DPVIZ_LINK=none has turned them off): the ranks talked over loopback\n"
    )


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--link-gbps", "0"], "link_gbps is 0.0, but it must be a number from 0.001 to 34."),
        (["--link-gbps=-1"], "link_gbps is -1.0, but"),
        (["--link-gbps", "1000000000"], "link_gbps is 1000000000.0, but"),
        (["--link-gbps", "fast"], "link_gbps is 'fast', but"),
        (["--link-latency-us", "5"], "--link-latency-us was given without --link-gbps"),
    ],
)
def test_a_wrong_rate_on_the_command_line_is_a_sentence(arguments, said):
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
