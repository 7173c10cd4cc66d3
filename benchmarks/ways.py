"""Ways to run k ranks from Python, each as a script that a new interpreter runs.

It prints a JSON object: `first_s`, from the interpreter's start to the first gradient; `warm_s`, a list, of further
ones; `bytes`, the memory of all processes but the user's own interpreter (PSS), once they are warm; `norms`, what every
rank found each time. A way that starts processes anew is never warm: there `warm_s` has every call, the first too.
"""

HEAD = """
import json, os, sys, tempfile, time
began, k, more = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.path.insert(0, sys.argv[4])
norms = []


def memory(processes):
    return sum(process.memory_full_info().pss for process in processes)


def tell(run, held, *, anew):
    seconds, ends = [], []
    for _ in range(1 + more):
        start = time.time()
        run()
        ends.append(time.time())
        seconds.append(ends[-1] - start)
    warm = seconds if anew else seconds[1:]
    print(json.dumps({"first_s": ends[0] - began, "warm_s": warm, "bytes": held(), "norms": norms}))


def note(directory, rank, norm):
    # for ranks whose launcher brings nothing back
    import psutil
    with open(f"{directory}/{rank}", "w") as file:
        json.dump([norm, memory([psutil.Process()])], file)


def noted(directory):
    # returns the memory of the ranks
    found = [json.load(open(f"{directory}/{rank}")) for rank in range(k)]
    norms.extend(norm for norm, _ in found)
    return sum(held for _, held in found)
"""

DPVIZ = """
import dpviz
from dpviz.ranks import jobs
jobs.warm()  # as importing dpviz does in a notebook
import psutil
from gradient import gradient


def run():
    norms.extend(dpviz.launch(gradient, world_size=k).results)


def held():
    server = psutil.Process(jobs._owner.pool.source.process.pid)
    return memory([server, *server.children(recursive=True)])


if __name__ == "__main__":
    tell(run, held, anew=False)
"""

SPAWN = """
import torch.multiprocessing as mp
from gradient import gradient, join


def work(rank, directory):
    join(rank, k, directory + "/store")
    note(directory, rank, gradient())


def run():
    global last
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory,), nprocs=k)
        last = noted(directory)


if __name__ == "__main__":
    tell(run, lambda: last, anew=True)
"""

TORCHRUN = """
import subprocess
SCRIPT = '''
import json, os, sys, psutil, torch, torch.distributed as dist
directory, path = sys.argv[1:]
sys.path.insert(0, path)
torch.set_num_threads(1)
dist.init_process_group("gloo")
from gradient import gradient
norm, me = gradient(), psutil.Process()
agent = me.parent().memory_full_info().pss if dist.get_rank() == 0 else 0
with open(f"{directory}/{dist.get_rank()}", "w") as file:
    json.dump([norm, me.memory_full_info().pss + agent], file)
dist.destroy_process_group()
'''


def run():
    global last
    with tempfile.TemporaryDirectory() as directory:
        with open(directory + "/script.py", "w") as file:
            file.write(SCRIPT)
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={k}"]
        subprocess.run([*words, file.name, directory, sys.argv[4]], check=True, stdout=subprocess.DEVNULL)
        last = noted(directory)


if __name__ == "__main__":
    tell(run, lambda: last, anew=True)
"""

# Both fork the user's interpreter. notebook_launcher is made for GPUs: a rank that does not ask for cpu=True is alone.
ACCELERATE = """
from accelerate import {0}
from gradient import gradient


def work(directory):
    import accelerate
    import torch

    torch.set_num_threads(1)
    state = accelerate.PartialState(cpu=True)
    note(directory, state.process_index, gradient())


def run():
    global last
    with tempfile.TemporaryDirectory() as directory:
        {0}(work, (directory,), num_processes=k)
        last = noted(directory)


if __name__ == "__main__":
    tell(run, lambda: last, anew=True)
"""

IPYPARALLEL = """
import ipyparallel
import psutil


def prepare(path, store, rank, size):
    import sys

    sys.path.insert(0, path)
    from gradient import join

    join(rank, size, store)


def work():
    from gradient import gradient

    return gradient()


def own():
    import psutil

    return psutil.Process().memory_full_info().pss


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, ipyparallel.Cluster(n=k, log_level=40) as ranks:
        waiting = [ranks[r].apply_async(prepare, sys.argv[4], directory + "/store", r, k) for r in range(k)]
        [one.get() for one in waiting]

        def held():
            children = psutil.Process().children(recursive=True)
            controller = [one for one in children if "controller" in " ".join(one.cmdline())]
            return sum(ranks[:].apply_sync(own)) + memory(controller)

        tell(lambda: norms.extend(ranks[:].apply_sync(work)), held, anew=False)
"""

# name: (script, further runs in one interpreter)
WAYS = {
    "dpviz": (DPVIZ, 20),
    "torch.multiprocessing.spawn": (SPAWN, 0),
    "torchrun": (TORCHRUN, 0),
    "accelerate notebook_launcher": (ACCELERATE.format("notebook_launcher"), 0),
    "accelerate debug_launcher": (ACCELERATE.format("debug_launcher"), 0),
    "ipyparallel": (IPYPARALLEL, 20),
}
NEEDS = {
    "accelerate notebook_launcher": "accelerate",
    "accelerate debug_launcher": "accelerate",
    "ipyparallel": "ipyparallel",
}
