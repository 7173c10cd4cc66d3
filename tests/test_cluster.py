"""The same experiment and config find the same facts wherever their ranks run; and what makes a launch fail is said."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cluster_facts
import psutil
import pytest
import torch
import torch.distributed as dist

from dpviz import data, models
from dpviz.measure import counted, wire
from dpviz.questions.base import WrongValue
from dpviz.ranks import devices, hosts, launch
from dpviz.records import Collective, Environment, Run

ROOT = Path(__file__).parents[1]
TWO_HOSTS = [sys.executable, str(ROOT / "cluster" / "two_hosts.py")]
ONE_HOST = "--standalone --nnodes 1"
SEVERAL = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint host0:29500"
TIMED = ("seconds", "times_stage_0")


def torchrun(options, *, folder, world_size, first=(), **more):
    """The Runs of cluster_facts.py under torchrun, by the experiment's name."""
    command = [*first, sys.executable, "-m", "torch.distributed.run", *options.split()]
    done = subprocess.run(
        [*command, cluster_facts.__file__, str(world_size), str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **more,
    )
    if done.returncode == 3 and first:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr[-3000:]
    return {name: Run.load(folder / f"{name}.json") for name in cluster_facts.ASKED}


def facts(run):
    """Without what is timed, and to twelve digits: a norm's last bit depends on where its vector lies in memory."""
    return {name: to_twelve_digits(value) for name, value in run.facts.items() if name not in TIMED}


def to_twelve_digits(value):
    if isinstance(value, dict):
        return {name: to_twelve_digits(item) for name, item in value.items()}
    if isinstance(value, list):
        return [to_twelve_digits(item) for item in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.fixture(scope="module")
def on_the_pool():
    return {name: cluster_facts.run(name, world_size=2) for name in cluster_facts.ASKED}


def assert_same(runs, others):
    assert {name: facts(run) for name, run in runs.items()} == {name: facts(run) for name, run in others.items()}


@pytest.mark.thorough
def test_torchrun_on_one_host_finds_what_the_pool_finds(on_the_pool, tmp_path):
    found = torchrun(f"{ONE_HOST} --nproc-per-node 2", folder=tmp_path, world_size=2)
    assert_same(found, on_the_pool)
    assert found["zero"].environment.hosts == 1 and "loopback" in found["zero"].environment.line()


@pytest.mark.thorough
def test_torchrun_on_two_hosts_finds_what_the_pool_finds_and_leaves_nothing_behind(on_the_pool, tmp_path):
    found = torchrun(f"{SEVERAL} --nproc-per-node 1", folder=tmp_path, world_size=2, first=TWO_HOSTS)
    assert_same(found, on_the_pool)
    assert found["zero"].environment.line().startswith("2 ranks on 2 hosts, gloo")
    assert found["zero"].environment.link == "namespaces of one machine"
    assert not [one for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in (one.info["cmdline"] or [])]


@pytest.mark.thorough
def test_one_rank_finds_the_same_here_on_the_pool_and_under_torchrun(tmp_path):
    here = {name: cluster_facts.run(name, world_size=1) for name in cluster_facts.ASKED}
    ask = {f"dpviz.experiments.{name}:experiment": config for name, config in cluster_facts.ASKED.items()}
    pool = {run.experiment: run for run in (launch.start(*one, world_size=1).result() for one in ask.items())}
    assert_same(here, pool)
    assert_same(here, torchrun(f"{ONE_HOST} --nproc-per-node 1", folder=tmp_path, world_size=1))


@pytest.mark.thorough
def test_under_torchrun_the_bytes_of_destroyed_groups_count_as_well(tmp_path):
    line = f"--standalone --nproc-per-node 2 -m dpviz run mesh --dp 2 --tp 1 --pp 1 --out {tmp_path / 'mesh.json'}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", *line.split()]
    done = subprocess.run(torchrun, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    run = Run.load(tmp_path / "mesh.json")
    steps = run.config["steps"] * sum(run.facts["wire_bytes"])
    assert 0 < steps <= sum(one.sent for one in run.wire) < 1.05 * steps


def test_when_the_rehearsal_is_stopped_both_hosts_stop(tmp_path):
    rehearsal = subprocess.Popen([*TWO_HOSTS, "sh", "-c", f": {tmp_path}; sleep 600 & wait"])
    try:
        wait_for(lambda: len(psutil.Process(rehearsal.pid).children(recursive=True)) == 4 or rehearsal.poll() == 3)
        if rehearsal.poll() == 3:
            pytest.skip("no namespaces for an ordinary user here")
        below = psutil.Process(rehearsal.pid).children(recursive=True)
        rehearsal.send_signal(signal.SIGTERM)
        rehearsal.wait(timeout=10)
        assert not [one for one in below if one.is_running()]
    finally:
        rehearsal.kill()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--gbps", "--gbps is '', but it must be a rate from 0.001 to 34"),
        ("--gbps x true", "--gbps is 'x', but it must be a rate"),
        ("--gbps -1 true", "--gbps is '-1', but it must be a rate"),
        ("--gbps 0 true", "Leave it out for no limit."),
        ("--gbps 1000 true", "--gbps is '1000'"),
        ("--gbps nan true", "--gbps is 'nan'"),
        ("--gbps 1", "--gbps 1 stands alone. Write the command after it"),
        ("no-such-command --gbps 1", "there is no command no-such-command."),
    ],
)
def test_a_line_that_the_rehearsal_cannot_run_is_a_sentence(line, sentence):
    done = subprocess.run([*TWO_HOSTS, *line.split()], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and sentence in done.stderr and len(done.stderr.splitlines()) == 1 and not done.stdout


def wait_for(happened, seconds=10):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- what makes a launch fail


def told(monkeypatch, *, places, interfaces):
    """What each of two ranks is told, "" where it may go on."""
    store, said = dist.HashStore(), ["", ""]
    here = threading.local()
    monkeypatch.setattr(hosts, "this_one", lambda: places[here.rank])
    monkeypatch.setattr(hosts, "interface", lambda: interfaces[here.rank])
    monkeypatch.setattr(hosts.socket, "if_nameindex", lambda: [(1, "lo"), (2, "eth0")])

    def check(rank):
        here.rank = rank
        try:
            hosts.check_interface(store, rank, 2)
        except WrongValue as wrong:
            said[rank] = str(wrong)

    threads = [threading.Thread(target=check, args=[rank]) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    return said


@pytest.mark.parametrize(
    ("places", "interfaces", "sentence"),
    [
        (["a", "b"], ["eth0", "lo"], "rank 1 would talk over lo, its loopback"),
        (["a", "b"], ["lo", "lo"], r"export GLOO_SOCKET_IFNAME=NAME, its network card \(there: eth0\)"),
        (["a", "a"], ["eth0", "eth7"], "GLOO_SOCKET_IFNAME is eth7 on rank 1, whose host has lo, eth0"),
        (["a", "b"], ["eth0", "eth0"], "^$"),
        (["a", "a"], ["lo", "lo"], "^$"),
    ],
)
def test_an_interface_that_does_not_lead_there_is_a_sentence_on_every_rank(monkeypatch, places, interfaces, sentence):
    first, second = told(monkeypatch, places=places, interfaces=interfaces)
    assert first == second and re.search(sentence, first)


@pytest.mark.parametrize(
    ("backend", "device", "under", "sentence"),
    [
        ("mpi", "cpu", "torchrun", "backend is 'mpi', but it must be one of gloo, nccl"),
        ("gloo", "tpu", "torchrun", "device is 'tpu', but it must be one of cpu, cuda"),
        ("nccl", "cpu", "torchrun", "but device is cpu. Give cuda"),
        ("nccl", "cuda", "", "torchrun has not started are gloo on cpu"),
        ("nccl", "cuda", "torchrun", "finds no GPU on this host"),
    ],
)
def test_a_backend_or_device_that_cannot_be_had_is_a_sentence(monkeypatch, backend, device, under, sentence):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WrongValue, match=sentence):
        devices.check(backend, device, launcher=under)


def test_more_ranks_than_gpus_is_a_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(WrongValue, match="this host has 2. Start at most that many ranks a host: --nproc-per-node 2"):
        devices.check("nccl", "cuda", launcher="torchrun")


def test_the_pool_refuses_another_backend():
    with pytest.raises(WrongValue, match="Leave both out, or start the ranks: torchrun"):
        cluster_facts.run("zero", world_size=2, backend="nccl", device="cuda")


# -- what of the code for GPUs can be seen without one: where tensors would lie. That is no proof that it runs there


def test_the_default_device_is_that_of_the_local_rank_and_is_put_back(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    with pytest.raises(LookupError), devices.on_device("cuda"):
        assert torch.get_default_device() == torch.device("cuda", 3)
        raise LookupError
    assert torch.get_default_device() == torch.device("cpu") and chosen == [3]


@pytest.mark.parametrize("name", data.NAMES)
def test_samples_and_models_come_on_the_default_device(name):
    data.load.cache_clear()
    with torch.device("meta"):
        dataset = data.load(name)  # itself in the host's memory
        x, y = data.samples(dataset, 0, 3)
        model = models.build("weight" if name == "count" else "mlp", dataset)
    assert {tensor.device.type for tensor in (x, y, *model.parameters())} == {"meta"}
    assert data.samples(dataset, 0, 3)[0].device.type == dataset.x.device.type == "cpu"


def test_a_model_is_the_same_wherever_it_is_moved_and_leaves_the_random_state():
    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    models.build("mlp", data.load("digits"), seed=1)
    assert torch.equal(torch.rand(1), wanted)


def test_what_nccl_carries_is_counted_and_its_reduce_scatter_is_a_true_one(monkeypatch):
    issued = [Collective("0", 1, "_reduce_scatter_base", ((1024,),), ("Float",))]
    assert counted.wire(issued, 0, 4, backend="gloo").sent == 2 * 3 * 1024
    assert counted.wire(issued, 0, 4, backend="nccl").sent == 3 * 1024
    before = wire.how()
    with devices.wire_of("nccl"):
        assert wire.how() == wire.COUNTED
    assert wire.how() == before
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = launch._environment(2, "torchrun", (), False, backend="nccl", device="cuda", hosts=2)
    assert made.link == "network"  # which gloo's interface does not tell
    assert made.wire == wire.COUNTED and made.line().startswith("2 ranks on 2 hosts, nccl, cuda, ")


def test_a_run_saved_before_there_were_hosts_and_devices_is_still_read():
    fields = dict.fromkeys(("backend", "launcher", "start_method", "wire", "torch", "python", "platform"), "")
    old = Environment(world_size=2, cores=1, link="loopback", **fields)
    assert (old.hosts, old.device) == (1, "cpu")
