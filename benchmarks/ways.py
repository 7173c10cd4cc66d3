"""Ways to run k ranks from Python, each as a script that a new interpreter runs.

It prints a JSON object: `first_s`, from the interpreter's start to the first gradient; `warm_s`, a list for further
ones; `bytes`, the memory of all processes (PSS) once they are warm. A way that starts processes anew has no other warm
time.
"""

HEAD = """
import json, os, sys, tempfile, time
began, k, more = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, sys.argv[4])


def memory(processes):
    return sum(process.memory_full_info().pss for process in processes)


def tell(**told):
    print(json.dumps(told), flush=True)


def timed(run):
    warm = []
    for _ in range(more):
        start = time.time()
        run()
        warm.append(time.time() - start)
    return warm
"""

DPVIZ = """
import dpviz
from dpviz.ranks import jobs
jobs.warm()  # as importing dpviz does in a notebook
import psutil
from gradient import gradient

if __name__ == "__main__":
    run = lambda: dpviz.launch(gradient, world_size=k)
    run()
    first = time.time() - began
    warm = timed(run)
    server = psutil.Process(jobs._owner.pool.source.process.pid)
    tell(first_s=first, warm_s=warm, bytes=memory([server, *server.children(recursive=True)]))
"""

SPAWN = """
import psutil
import torch.multiprocessing as mp
from gradient import gradient, join


def work(rank, directory):
    join(rank, k, directory + "/store")
    gradient()
    open(f"{directory}/{rank}", "w").write(str(psutil.Process().memory_full_info().pss))


def run():
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory,), nprocs=k)
        return sum(int(open(f"{directory}/{rank}").read()) for rank in range(k))


if __name__ == "__main__":
    held = run()
    first = time.time() - began
    tell(first_s=first, warm_s=timed(run), bytes=held)
"""

TORCHRUN = """
import subprocess
SCRIPT = '''
import sys, psutil, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo")
from gradient import gradient
gradient()
print("PSS", psutil.Process().memory_full_info().pss)
dist.destroy_process_group()
'''

if __name__ == "__main__":
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(SCRIPT)

    def run():
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={k}"]
        done = subprocess.run([*words, file.name, sys.argv[4]], check=True, capture_output=True, text=True)
        return sum(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("PSS"))

    held = run()
    first = time.time() - began
    tell(first_s=first, warm_s=timed(run), bytes=held)
    os.unlink(file.name)
"""

ACCELERATE = """
import psutil
from accelerate import debug_launcher
from gradient import gradient


def work(directory):
    import accelerate
    import torch

    torch.set_num_threads(1)
    state = accelerate.PartialState(cpu=True)
    gradient()
    open(f"{directory}/{state.process_index}", "w").write(str(psutil.Process().memory_full_info().pss))


def run():
    with tempfile.TemporaryDirectory() as directory:
        debug_launcher(work, (directory,), num_processes=k)  # notebook_launcher's counterpart for CPUs
        return sum(int(open(f"{directory}/{rank}").read()) for rank in range(k))


if __name__ == "__main__":
    held = run()
    first = time.time() - began
    tell(first_s=first, warm_s=timed(run), bytes=held)
"""

IPYPARALLEL = """
import ipyparallel
import psutil
from gradient import gradient, join


def prepare(path, store, rank, size):
    import sys

    sys.path.insert(0, path)
    from gradient import join

    join(rank, size, store)


def work():
    from gradient import gradient

    return gradient()


def held():
    import psutil

    return psutil.Process().memory_full_info().pss


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, ipyparallel.Cluster(n=k, log_level=40) as ranks:
        waiting = [ranks[r].apply_async(prepare, sys.argv[4], directory + "/store", r, k) for r in range(k)]
        [one.get() for one in waiting]
        run = lambda: ranks[:].apply_sync(work)
        run()
        first = time.time() - began
        warm = timed(run)
        everybody = sum(ranks[:].apply_sync(held))
        controller = [p for p in psutil.Process().children(recursive=True) if "controller" in " ".join(p.cmdline())]
        tell(first_s=first, warm_s=warm, bytes=everybody + memory(controller))
"""

# name: (script, further runs in one interpreter)
WAYS = {
    "dpviz": (DPVIZ, 20),
    "torch.multiprocessing.spawn": (SPAWN, 1),
    "torchrun": (TORCHRUN, 1),
    "accelerate debug_launcher": (ACCELERATE, 1),
    "ipyparallel": (IPYPARALLEL, 20),
}
