"""What a pool leaves behind, and what it costs: kernels that die, many launches, sockets, memory, time."""

import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from jupyter_client.manager import KernelManager

from dpviz.ranks import jobs
from dpviz.ranks.launch import launch

pytestmark = pytest.mark.quiet

LAUNCHES = 200 if "CI" in os.environ else 20

DEFINITIONS = """
import dpviz

def total(config):
    import torch, torch.distributed as dist
    x = torch.ones(4)
    dist.all_reduce(x)
    return x[0].item()

def stuck(config):
    import time, torch, torch.distributed as dist
    yield "here"
    if dist.get_rank() == 0:
        time.sleep(600)
    while dist.get_rank() == 1:
        pass
    dist.all_reduce(torch.ones(4))
"""


class Kernel:
    """A real Jupyter kernel of this Python, in a process group of its own as JupyterLab starts it."""

    def __enter__(self):
        self.manager = KernelManager()
        self.manager.start_kernel()
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(60)
        assert self.run(DEFINITIONS) == ""
        return self

    def __exit__(self, *_):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    @property
    def pid(self):
        return self.manager.provisioner.pid

    def run(self, code):
        said = []

        def hear(message):
            content = message["content"]
            said.append(content.get("text") or content.get("ename") or "")

        self.client.execute_interactive(code, timeout=60, output_hook=hear)
        return "".join(said)

    def error(self, code):
        """Run code that fails; return what the notebook shows of it."""
        self.client.execute(code)
        while (message := self.client.get_iopub_msg(timeout=30))["msg_type"] != "error":
            pass
        time.sleep(0.3)  # ipykernel drops what is asked of it right after an error
        return "\n".join(message["content"]["traceback"])

    def begin_stuck(self):
        """Begin a launch that cannot end, and wait until its ranks are in it."""
        self.client.execute(
            "dpviz.launch(stuck, world_size=4, timeout=300, on_record=lambda *_: print('in', flush=True))"
        )
        seen = 0
        while seen < 4:
            message = self.client.get_iopub_msg(timeout=30)
            seen += message["content"].get("text", "").count("in\n")

    def ours(self):
        return [p for p in psutil.Process(self.pid).children(recursive=True)]


def alive(processes):
    return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def wait_until(done, seconds):
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done()


@pytest.mark.parametrize("how", ["kill", "restart"])
def test_no_process_is_left_when_a_kernel_ends_in_the_middle(how):
    with Kernel() as kernel:
        kernel.begin_stuck()
        ours = kernel.ours()
        assert len(ours) >= 5  # the server and four ranks
        if how == "kill":
            os.kill(kernel.pid, signal.SIGKILL)
        else:
            kernel.manager.restart_kernel(now=False)
        assert wait_until(lambda: not alive(ours), 5), alive(ours)


def test_jupyters_interrupt_ends_the_launch_and_the_next_one_is_right():
    with Kernel() as kernel:
        kernel.begin_stuck()
        ours = kernel.ours()
        began = time.monotonic()
        kernel.manager.interrupt_kernel()
        while kernel.client.get_iopub_msg(timeout=10)["content"].get("ename") != "KeyboardInterrupt":
            pass
        assert time.monotonic() - began < 1
        time.sleep(0.5)  # ipykernel drops what is asked of it right after an error
        assert kernel.run("print(dpviz.launch(total, world_size=4).results)") == "[4.0, 4.0, 4.0, 4.0]\n"
        server = ours[0]
        assert server.is_running()  # the interrupt is for the whole process group, and must not reach it


def test_two_kernels_at_once_and_a_kernel_that_has_used_openmp():
    with Kernel() as one, Kernel() as two:
        two.run("import torch; torch.set_num_threads(2); _ = torch.randn(500, 500) @ torch.randn(500, 500)")
        for kernel in (one, two, one, two):
            assert kernel.run("print(dpviz.launch(total, world_size=3).results)") == "[3.0, 3.0, 3.0]\n"
        one.begin_stuck()
        assert two.run("print(dpviz.launch(total, world_size=2).results)") == "[2.0, 2.0]\n"


@pytest.fixture(scope="module")
def notebook():
    with Kernel() as kernel:
        yield kernel


def test_an_error_in_a_notebook_shows_the_cells_own_line(notebook):
    notebook.run("def wrong(config):\n    x = 1\n    raise KeyError('planted')")
    shown = notebook.error("dpviz.launch(wrong, world_size=2)")
    assert "raise KeyError('planted')" in shown
    assert "Cell In[" in shown and "line 3" in shown
    assert "dpviz/ranks" not in shown


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("dpviz.launch(total, world_size=0)", "world_size is 0, but it must be a whole number from 1 to 32."),
        ("from dpviz.questions.equivalence import Config; Config(dtype='float8')", "Did you mean float64?"),
        (
            "import _thread; lock = _thread.allocate_lock(); dpviz.launch(lambda c: lock, world_size=2)",
            "inside the func",
        ),
    ],
)
def test_a_wrong_value_in_a_notebook_is_a_sentence_without_our_frames(notebook, code, sentence):
    shown = notebook.error(code)
    assert shown.startswith("ValueError: ") and sentence in shown
    assert "dpviz/" not in shown and len(shown.splitlines()) == 1


def test_many_launches_leave_nothing():
    def census(config):
        dist.all_reduce(torch.ones(1000))
        private = sum(line.private_dirty + line.private_clean for line in psutil.Process().memory_maps())
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), private / 1e6

    def here():
        me = psutil.Process()
        return len(me.children(recursive=True)), me.num_fds(), me.num_threads()

    for size in (4, 8, 4, 8):
        launch(census, world_size=size)
    before, first = here(), launch(census, world_size=4).results
    for number in range(LAUNCHES):
        launch(census, world_size=(4, 8, 2, 5)[number % 4])
    last = launch(census, world_size=4).results
    assert here() == before
    for (fds, threads, mb), (fds_later, threads_later, mb_later) in zip(first, last, strict=True):
        assert fds_later <= fds + 2 and threads_later <= threads + 1
        assert mb_later < mb + 5, f"a rank's private memory grew from {mb:.1f} to {mb_later:.1f} MB"


def test_every_socket_is_on_loopback():
    def sockets(config):
        dist.all_reduce(torch.ones(10))
        return [(c.laddr.ip, c.status) for c in psutil.Process().net_connections("inet")]

    found = [one for of_rank in launch(sockets, world_size=4).results for one in of_rank]
    assert any(status == psutil.CONN_LISTEN for _, status in found)
    assert {ip for ip, _ in found} <= {"127.0.0.1", "::1"}
    server = psutil.Process(jobs._owner.pool.source.process.pid)
    assert not server.net_connections("inet")


def ddp_gradient(config):
    """The work that every way of running ranks is timed with."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    model(torch.randn(8, 256)).pow(2).mean().backward()
    return model.module.weight.grad.norm().item()


SPAWN = """
import sys, tempfile, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def gradient(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    model(torch.randn(8, 256)).pow(2).mean().backward()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(gradient, (directory + "/store",), nprocs=4)
"""

OURS = """
import dpviz
from dpviz.ranks import jobs
jobs.warm()  # as importing dpviz does in a notebook
import torch

def gradient(config):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    model(torch.randn(8, 256)).pow(2).mean().backward()
    return model.module.weight.grad.norm().item()

if __name__ == "__main__":
    dpviz.launch(gradient, world_size=4)
"""


MEMORY = (
    OURS.replace("world_size=4", "world_size=8")
    + """
    import psutil
    server = psutil.Process(jobs._owner.pool.source.process.pid)
    everybody = [server, *server.children()]
    assert len(everybody) == 9
    print(sum(p.memory_full_info().pss for p in everybody) / 1e6)
"""
)


def test_eight_ranks_and_their_server_fit_in_450_mb():
    """In an interpreter of its own: here a rank imports this module, and with it pytest."""
    done = subprocess.run([sys.executable, "-c", MEMORY], check=True, timeout=180, capture_output=True, text=True)
    megabytes = float(done.stdout)
    print(f"8 ranks and their server: {megabytes:.0f} MB (PSS)")
    assert megabytes < 450


@pytest.mark.thorough
def test_ahead_of_spawn_cold_and_warm(tmp_path):
    """Ratios inside one run; the new interpreter of ours also ends with its server and ranks."""

    def seconds(code, *, tries=1):
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
        for left in reversed(range(tries)):
            began = time.perf_counter()
            done = subprocess.run([sys.executable, str(script)], check=not left, timeout=180, env=environment)
            if done.returncode == 0:
                return time.perf_counter() - began

    # a rank that torch spawned aborts now and then as its interpreter ends, with its group destroyed or not
    spawn, ours = seconds(SPAWN, tries=4), seconds(OURS)
    launch(ddp_gradient, world_size=4)
    warm = []
    for _ in range(15):
        began = time.perf_counter()
        launch(ddp_gradient, world_size=4)
        warm.append(time.perf_counter() - began)
    median = statistics.median(warm)
    print(
        f"spawn {spawn:.2f} s, dpviz in a new interpreter {ours:.2f} s ({ours / spawn:.2f}), "
        f"warm {1000 * median:.0f} ms ({spawn / median:.0f} times faster)"
    )
    assert ours < spawn * 2 / 3
    assert spawn / median > 50
    assert median < 0.1


def test_32_ranks_answer_within_two_seconds():
    launch(ddp_gradient, world_size=32)
    began = time.perf_counter()
    launch(ddp_gradient, world_size=32)
    took = time.perf_counter() - began
    print(f"32 warm ranks: {took:.2f} s")
    assert took < 2
