"""What a rank process does: join a process group when told, call experiments, send back what they yield and return.

The main thread runs the experiments. A listening thread answers "where are you" and "what went over the wire"
meanwhile, also while the main thread is blocked in a collective: that is how a launch finds out who did not come.

Messages are pickled tuples over the control socket:
    to a rank      ("join", rank, world_size, store, timeout, on_link)  ("call", payload, timeout, path, directory)
                   ("where",)  ("wire",)
    from a rank    ("joined",)  ("record", record)  ("result", result, collectives, place)
                   ("error", kind, message, frames, place)  ("where", place)  ("wire", sent, received)
"""

from __future__ import annotations

import contextlib
import datetime
import inspect
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from dpviz import seeds
from dpviz.measure import collectives, destroyed, wire
from dpviz.ranks import sources, travel

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


def serve(control: int, output: int, *, networks: tuple[int, int | None] | None = None) -> None:
    """Serve the launcher until it closes `control`; everything printed, also by C++ code, goes to `output` in order.

    networks  the namespaces of the server's loopback and of this rank's own interface, where it has one
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    # Gloo says this of every tensor-wise gather; a learner can do nothing about it
    warnings.filterwarnings("ignore", message=".*all_gather_into_tensor.*|.*reduce_scatter_tensor.*")
    Rank(Connection(control), networks).work()


class Rank:
    def __init__(self, connection: Connection, networks: tuple[int, int | None] | None):
        self.connection, self.networks = connection, networks
        self.jobs: queue.SimpleQueue = queue.SimpleQueue()
        self.sending = threading.Lock()
        self.counters = wire.Counters()
        self.recorder = collectives.Recorder()
        self.environment, self.filters = dict(os.environ), list(warnings.filters)
        self.parent = os.getppid()
        self.store = ""  # the file at which it met the others last
        threading.Thread(target=self.listen, daemon=True).start()

    def send(self, *message) -> None:
        data = travel.dumps(message)
        with self.sending:
            self.connection.send_bytes(data)

    def listen(self) -> None:
        while True:
            try:
                message = travel.loads(self.connection.recv_bytes())
            except (EOFError, OSError):  # the launcher let go of this rank
                with contextlib.suppress(OSError):  # forked too late to be killed with the others, it may have made one
                    os.unlink(self.store)
                if os.getppid() != self.parent and tempfile.tempdir:  # or is gone, and no rank server either
                    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
                os._exit(0)
            if message[0] == "where":
                self.send("where", where(self.recorder))
            elif message[0] == "wire":
                self.send("wire", *self.counters.since_last())
            else:
                self.jobs.put(message)

    def work(self) -> None:
        while True:
            kind, *arguments = self.jobs.get()
            try:
                getattr(self, kind)(*arguments)
            except BaseException as error:  # SystemExit and KeyboardInterrupt too: a missing result must be an error
                _flush()
                frames = travel.frames_of(error)
                self.send("error", type(error).__name__, travel.words(error), frames, where(self.recorder, frames))

    def join(self, rank: int, world_size: int, store: str, timeout: float, on_link: bool) -> None:
        self.store = store
        tempfile.tempdir = os.path.dirname(store)  # what is left there goes when the server does
        destroyed.let_go()
        if dist.is_initialized():
            dist.destroy_process_group()
        self.move(on_link)
        try:
            join_group(rank, world_size, store, timeout)
        except dist.DistStoreError as error:
            if "No space left" not in str(error):
                raise
            folder = os.path.dirname(tempfile.tempdir)
            why = f"there is no room in {folder}, where the ranks meet at a file"
            raise OSError(f"{why}. {sources.MAKE_ROOM}") from None
        self.recorder.begin_group()
        self.send("joined")

    def move(self, on_link: bool) -> None:
        """Go to this rank's own interface or to the shared loopback; the threads of the next group come along."""
        if self.networks:
            from dpviz.ranks import network

            network.hop(self.networks[on_link])
            self.environment["GLOO_SOCKET_IFNAME"] = network.NIC if on_link else LOOPBACK
            os.environ["GLOO_SOCKET_IFNAME"] = self.environment["GLOO_SOCKET_IFNAME"]

    def call(self, payload: bytes, timeout: float, path: list[str], directory: str) -> None:
        sys.path[:] = path
        os.chdir(directory)
        self.forget()
        destroyed.let_go()  # of the launch before, whose bytes have been read
        destroyed.keep(self.counters)
        dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=timeout))
        seeds.reset()
        before = self.recorder.number
        threads = threading.active_count()
        result = run(*travel.loads(payload), on_record=lambda record: self.send_back("record", record))
        _flush()
        if not dist.is_initialized():
            raise ValueError("the experiment has destroyed the process group. Leave that to the launcher.")
        issued = self.recorder.of_launch()
        place = {
            "line": None,
            "waits_in": None,
            "issued": self.recorder.number - before,
            "last": issued[-1] if issued else None,
            "threads": threading.active_count() - threads,
        }
        self.send_back("result", result, issued, place)

    def forget(self) -> None:
        """Undo what an earlier experiment may have set for the whole process."""
        os.environ.clear()
        os.environ.update(self.environment)
        warnings.filters[:] = self.filters
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(1)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        if "torch.distributed.tensor" in sys.modules:  # DTensor remembers meshes, and takes an equal one for the same
            from torch.distributed.tensor import debug

            debug._clear_sharding_prop_cache()

    def send_back(self, *message) -> None:
        """Send something of the user's, which may be anything."""
        try:
            data = travel.dumps(message)
        except Exception as error:  # pickling runs the code of whatever it meets
            raise ValueError(
                f"what the experiment {'yielded' if message[0] == 'record' else 'returned'} cannot be sent back: "
                f"{error}. "
                "Give numbers, strings, lists, dicts, arrays or tensors."
            ) from None
        with self.sending:
            self.connection.send_bytes(data)


def join_group(rank: int, world_size: int, store: str, timeout: float) -> None:
    """Make the default process group: gloo, meeting at a file that no group has used before."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, world_size),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )


def run(experiment, config, *, on_record):
    """Call the experiment, pass on what it yields, return what it returns."""
    result = travel.resolve(experiment)(config)
    if not inspect.isgenerator(result):
        return result
    while True:
        try:
            record = next(result)
        except StopIteration as end:
            return end.value
        on_record(record)


def where(recorder: collectives.Recorder, frames: list[travel.Frame] | None = None) -> dict:
    """Return where the main thread is, or where it was when an error with these frames, outermost first, was raised:
    the innermost line of the user's, the function of torch.distributed it waits in, how many collectives were issued in
    this launch, the last one.
    """
    waits_in = line = None
    for frame in reversed(frames) if frames is not None else _main_thread():
        if travel.is_users(frame[0]):
            line = frame
            break
        if f"torch{os.sep}distributed" in frame[0] and frame[2] != "wrapper":
            waits_in = frame[2]
    issued, last = recorder.reached()
    return {"line": line, "waits_in": waits_in, "issued": issued, "last": last}


def _main_thread() -> Iterator[travel.Frame]:
    """Yield the frames of the main thread as it is now, innermost first."""
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name
        frame = frame.f_back


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
