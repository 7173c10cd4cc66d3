"""What students' programs do wrong: faults as experiments for the ranks, with what must be said of each and by when.

`pytest tests/test_reliability.py` tries them all; docs/reliability.md is their table.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist


def total(k):
    return k * (k + 1) / 2


RIGHT = [total(4)] * 4  # of four ranks
LATE_S = 0.5  # the timeout of those that are found by waiting


def right(config):
    """A launch as it should be: the sum of 1, 2, ... k."""
    x = torch.full((3,), float(dist.get_rank() + 1))
    dist.all_reduce(x)
    return x[0].item()


def a_rank_raises(config):
    if dist.get_rank() == 1:
        raise KeyError("planted")
    dist.barrier()


def endless_recursion(config):
    if dist.get_rank() == 1:
        endless_recursion(config)
    dist.barrier()


def kill_9(config):
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1 << 20))


def segmentation_fault(config):
    if dist.get_rank() == 3:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def sigstop(config):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(4))


def exit_0_early(config):
    if dist.get_rank() == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(4))


def out_of_memory_at_a_limit(config):
    if dist.get_rank() == 1:
        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
        return [torch.ones(1 << 20) for _ in range(100)]
    dist.barrier()


def a_missing_collective(config):
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() != 3:
        dist.all_reduce(torch.ones(5, 2))


def mismatched_shapes(config):
    dist.all_reduce(torch.ones(8 if dist.get_rank() == 0 else 4))


def mismatched_order(config):
    if dist.get_rank() == 0:
        dist.broadcast(torch.ones(4), 1)
    else:
        dist.all_reduce(torch.ones(4))


def deadlock_of_messages(config):
    rank, k = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.ones(5), (rank - 1) % k)
    dist.send(torch.ones(5), (rank + 1) % k)


def deadlock_of_locks(config):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def huge_prints(config):
    for _ in range(20):
        print("x" * 1_000_000)
    for number in range(20_000):
        print(number)
    return right(config)


class Homebound:
    """Is pickled anywhere, and read by the process that made it and by ranks, but not by rank 1."""

    def __reduce__(self):
        return _at_home, (os.getpid(),)


def _at_home(home):
    if os.getpid() != home and (not dist.is_initialized() or dist.get_rank() == 1):
        raise OSError("not at home")


def unpicklable_there():
    lock = threading.Lock()
    return lambda config: lock


def unreadable_there():
    thing = Homebound()
    return lambda config: (thing, dist.barrier())


def unpicklable_back(config):
    if dist.get_rank() == 1:
        return threading.Lock()
    dist.barrier()


def unreadable_back(config):
    if dist.get_rank() == 2:
        yield Homebound()
    dist.barrier()


class Speechless(Exception):
    def __str__(self):
        raise ValueError("no words")


def an_exception_without_words(config):
    if dist.get_rank() == 1:
        raise Speechless
    dist.barrier()


def a_child_is_left(config):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    if dist.get_rank() == 1:
        raise ValueError("with a child")
    dist.barrier()


@dataclass(frozen=True, kw_only=True)
class Fault:
    """experiment  what is launched; where `made`, what returns it, since it must not be importable
    said      what stands in the error ("" where the launch must succeed all the same)
    ranks     whose fault it is said to be
    waits     how many timeouts pass before it shows; it is then launched with a timeout of LATE_S
    """

    experiment: Callable
    said: str
    ranks: tuple[int, ...] = ()
    waits: int = 0
    made: bool = False

    @property
    def name(self) -> str:
        return self.experiment.__name__

    @property
    def within_s(self) -> float:
        """Seconds after which the error must be there."""
        return 2 + self.waits * LATE_S

    @property
    def within(self) -> str:
        """The same in words."""
        return ("", "timeout + ", "2 timeouts + ")[self.waits] + "2 s"


ALL = (0, 1, 2, 3)
FAULTS = [
    Fault(experiment=a_rank_raises, said="rank 1 raised KeyError: 'planted'", ranks=(1,)),
    Fault(experiment=endless_recursion, said="rank 1 raised RecursionError", ranks=(1,)),
    Fault(experiment=an_exception_without_words, said="rank 1 raised Speechless: (its message cannot", ranks=(1,)),
    Fault(experiment=kill_9, said="rank 2 was ended by SIGKILL, as the system does when memory runs out", ranks=(2,)),
    Fault(experiment=segmentation_fault, said="rank 3 was ended by SIGSEGV", ranks=(3,)),
    Fault(experiment=sigstop, said="rank 1 did not answer: stopped, or holding Python's lock", ranks=(1,), waits=1),
    Fault(experiment=exit_0_early, said="rank 1 exited with status 0 before it returned", ranks=(1,)),
    Fault(experiment=out_of_memory_at_a_limit, said="you tried to allocate 4194304 bytes", ranks=(1,)),
    Fault(experiment=a_missing_collective, said="rank 3 did not come to collective 2", ranks=(3,), waits=1),
    Fault(experiment=mismatched_shapes, said="rank 0 called all_reduce of [8], where", ranks=(0,), waits=1),
    Fault(experiment=mismatched_order, said="rank 0 called broadcast of [4], where", ranks=(0,), waits=1),
    Fault(experiment=deadlock_of_messages, said="rank 3 waited in recv for another rank", ranks=ALL, waits=2),
    Fault(experiment=deadlock_of_locks, said="had neither returned nor said anything", ranks=ALL, waits=2),
    Fault(experiment=a_child_is_left, said="rank 1 raised ValueError: with a child", ranks=(1,)),
    Fault(experiment=huge_prints, said=""),
    Fault(experiment=unpicklable_there, said="cannot be sent to the ranks", made=True),
    Fault(experiment=unreadable_there, said="rank 1 raised OSError: not at home", ranks=(1,), made=True),
    Fault(experiment=unpicklable_back, said="what the experiment returned cannot be sent back", ranks=(1,)),
    Fault(experiment=unreadable_back, said="sent back cannot be read here: OSError: not at home", ranks=(2,)),
]
ON_LINKS = ("kill_9", "sigstop", "a_missing_collective", "exit_0_early")
