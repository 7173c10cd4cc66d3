"""The verb a lesson uses: run an experiment on k ranks and bring back a Run.

`launch` decides by looking at the world: started by torchrun, the ranks are torchrun's; with world size 1 the
experiment runs here, so that a debugger works; otherwise the warm pool of local ranks runs it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import platform
import queue
from collections.abc import Callable, Sequence
from typing import Any

from dpviz.contract import document
from dpviz.measure import wire
from dpviz.questions.base import WrongValue, check_world_size
from dpviz.ranks import devices, here, jobs, sources, travel
from dpviz.ranks.errors import RankError
from dpviz.ranks.hosts import LOOPBACKS
from dpviz.ranks.link import Link
from dpviz.ranks.link import check as check_link
from dpviz.ranks.ongoing import Outcome
from dpviz.records import ALONE, Environment, Run, Wire

LONGEST_TIMEOUT_S = 24 * 3600


def launch(
    experiment: Callable | str,
    config: Any = None,
    *,
    world_size: int | None = None,
    link: Link | None = None,
    timeout: float = 60,
    on_record: Callable[[int, Any], None] | None = None,
    on_print: Callable[[int, str], None] | None = None,
    backend: str = "gloo",
    device: str = "cpu",
) -> Run:
    """Call experiment(config) once on each of `world_size` ranks, the default process group ready, and return the Run.

    experiment   a function, or "package.module:function"; it may yield records and may return a result
    world_size   the number of ranks, k, from 1 to 32; may be left out where the config implies it
    link         dpviz.Link(gbps=1.0) gives each rank a network interface of that speed, where the machine can; without
                 one, and elsewhere, ranks talk over the loopback. run.environment.link says what it was. Either way
                 ranks of a machine with links reach nothing outside; DPVIZ_LINK=none leaves them in its own network
    timeout      seconds that a collective may take, and half of what the whole launch may be silent (no record,
                 no print, no result)
    on_record    called as on_record(rank, record) as records arrive
    on_print     called as on_print(rank, line) as lines arrive; by default it prints "[rank 2] line".
                 Run.prints keeps them
    backend      gloo, or under torchrun nccl
    device       cpu, or under torchrun cuda: torch's default device is then the GPU of the rank's number on its host

    On every rank torch, numpy and random are seeded alike, so that equal code makes equal parameters; call
    dpviz.seed_by_rank after the model is built where ranks must differ (dropout, augmentation). With world_size=1 the
    experiment runs in this process, so that a debugger works, and no timeout is enforced.

    Under torchrun the ranks are torchrun's; across hosts export GLOO_SOCKET_IFNAME, the network card's name, since else
    they would talk over the loopback alone (a ValueError says so), and with nccl NCCL_SOCKET_IFNAME likewise.

    Raises RankError (its `ranks` says whose fault), ValueError for a wrong argument, KeyboardInterrupt.
    """
    name, world_size = _checked(experiment, config, world_size, timeout)
    on_print = on_print or (lambda rank, line: print(f"[rank {rank}] {line}"))
    on_record = on_record or (lambda rank, record: None)
    elsewhere = here.launcher()
    if elsewhere and link:
        raise WrongValue("a link was given, but these ranks are torchrun's, on their own network. Leave the link out.")
    devices.check(backend, device, launcher=elsewhere)
    if elsewhere or world_size == 1:
        check_link(link)
        where = {"backend": backend, "device": device}
        outcome, records, hosts = here.run(
            experiment, config, world_size=world_size, timeout=timeout, on_record=on_record, **where
        )
        how = {"launcher": elsewhere or "in-process", "hosts": hosts, **where}
        return _made(name, config, outcome, records, prints=[[] for _ in records], **how)

    # The pool's thread only notes what happens; callbacks run in this one, where prints and exceptions reach the cell
    happened: queue.SimpleQueue = queue.SimpleQueue()
    job = start(
        experiment,
        config,
        world_size=world_size,
        link=link,
        timeout=timeout,
        on_record=lambda *event: happened.put((on_record, event)),
        on_print=lambda *event: happened.put((on_print, event)),
        submit=False,
    )
    try:  # from before it is submitted: an interrupt must not leave a job that nobody waits for
        jobs.submit(job)
        job.add_done_callback(lambda _: happened.put(None))
        while (event := happened.get()) is not None:
            event[0](*event[1])
    except BaseException:
        job.stop()
        raise
    return job.result()


def start(
    experiment: Callable | str,
    config: Any = None,
    *,
    world_size: int | None = None,
    link: Link | None = None,
    timeout: float = 60,
    on_record: Callable[[int, Any], None] | None = None,
    on_print: Callable[[int, str], None] | None = None,
    submit: bool = True,
) -> jobs.Job:
    """Like `launch`, but on the pool also for one rank, and return a Job at once; callbacks come from the pool's
    thread. With submit=False nothing begins before jobs.submit(job).
    """
    name, world_size = _checked(experiment, config, world_size, timeout)
    if isinstance(link, Link):
        jobs.warm()  # the server imports torch while another process tries whether links are possible
    possible = check_link(link)
    if world_size == 1:  # nobody to send to
        link = possible = None
    records: list[list[Any]] = [[] for _ in range(world_size)]
    prints: list[list[str]] = [[] for _ in range(world_size)]

    def keep(rank: int, record: Any) -> None:
        records[rank].append(record)
        if on_record:
            on_record(rank, record)

    def note(rank: int, line: str) -> None:
        prints[rank].append(line)
        if on_print:
            on_print(rank, line)

    def conditions() -> dict[str, Any]:
        return {
            "prints": prints,
            "launcher": "pool",
            "links": job.links,
            "no_link": bool(link and not possible),
        }

    def finish(outcome: Outcome) -> Run:
        return _made(name, config, outcome, records, **conditions())

    def fail(error: RankError) -> Run:
        """A question may be about a failure: then it makes its facts of the error and of the records before it."""
        facts_of_failure = getattr(type(config), "facts_of_failure", None)
        if facts_of_failure is None:
            raise error
        nothing = Outcome([None] * world_size, [Wire()] * world_size, [[]] * world_size)
        run = _under_contract(_unfinished(name, config, nothing, records, **conditions()), config, failure=error)
        facts = facts_of_failure(run, error)
        if facts is None:
            raise error
        return dataclasses.replace(run, facts=facts)

    job = jobs.Job(
        travel.pack(experiment, config),
        finish=finish,
        fail=fail,
        world_size=world_size,
        link=possible,
        timeout=timeout,
        on_record=keep,
        on_print=note,
    )
    if submit:
        jobs.submit(job)
    return job


def _checked(experiment: Any, config: Any, world_size: Any, timeout: Any) -> tuple[str, int]:
    if not callable(experiment) and not (isinstance(experiment, str) and ":" in experiment):
        raise WrongValue(
            f"the experiment is {experiment!r}, but it must be a function that takes the config; "
            "give the function itself, without calling it."
        )
    if isinstance(config, type):
        raise WrongValue(f"the config is the class {config.__name__}. Make one of it: {config.__name__}().")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST_TIMEOUT_S:
        raise WrongValue(
            f"timeout is {timeout!r}, but it must be a number of seconds above 0 and at most {LONGEST_TIMEOUT_S}."
        )
    if world_size is None and hasattr(config, "implied_world_size"):
        world_size = config.implied_world_size()
    world_size = check_world_size(world_size)
    if hasattr(config, "check_world_size"):
        config.check_world_size(world_size)
    module = experiment.partition(":")[0] if isinstance(experiment, str) else getattr(experiment, "__module__", "")
    question = module.removeprefix("dpviz.experiments.")
    return (question if question != module else travel.name_of(experiment)), world_size


def _made(name: str, config: Any, outcome: Outcome, records: list, **conditions: Any) -> Run:
    run = _unfinished(name, config, outcome, records, **conditions)
    facts = getattr(type(config), "facts", None)
    try:
        run = _under_contract(run, config)
        return dataclasses.replace(run, facts=facts(run)) if facts else run
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        question = type(config).__module__.rpartition(".")[2]
        raise WrongValue(
            f"{name} ran, but does not return or yield what the facts of {question} are made of ({error!r}). "
            f"Return what the experiment {question} returns, or give another config: a dict of your own will do."
        ) from error


def _under_contract(run: Run, config: Any, *, failure: RankError | None = None) -> Run:
    more = getattr(type(config), "contract_parts", lambda run: None)(run)
    return dataclasses.replace(run, contract=document.make(run, more, failure=failure))


def _unfinished(
    name: str,
    config: Any,
    outcome: Outcome,
    records: list,
    *,
    prints: list,
    launcher: str,
    links: Sequence[Link] = (),
    no_link: bool = False,
    **where: Any,
) -> Run:
    """Return the Run without its facts. `links` are those that the ranks talked over; `no_link` says that one was
    asked for and could not be had; `where` has the backend, device and hosts, where they are not the pool's.
    """
    return Run(
        experiment=name,
        config=_as_dict(config),
        results=outcome.results,
        records=records,
        wire=outcome.wire,
        environment=_environment(len(outcome.results), launcher, links, no_link, **where),
        collectives=outcome.collectives,
        prints=prints,
    )


def _as_dict(config: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(config):
        return dataclasses.asdict(config)
    return dict(config) if isinstance(config, dict) else {} if config is None else {"value": config}


def _environment(
    world_size: int,
    launcher: str,
    links: Sequence[Link],
    no_link: bool,
    *,
    backend: str = "gloo",
    device: str = "cpu",
    hosts: int = 1,
) -> Environment:
    with devices.wire_of(backend):
        how = wire.how() if world_size > 1 else ALONE
    return Environment(
        world_size=world_size,
        backend=backend,
        launcher=launcher,
        start_method=sources.start_method() if launcher == "pool" else "",
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        link=_in_words(launcher, links, no_link, backend),
        wire=how,
        torch=_version("torch"),
        python=platform.python_version(),
        platform=platform.platform(terse=True),
        link_gbps=links[0].gbps if len(links) == 1 else None,
        link_latency_us=links[0].latency_us if len(links) == 1 else 0.0,
        device=device,
        hosts=hosts,
    )


_version = functools.cache(importlib.metadata.version)  # which reads and parses a file, every time


def _in_words(launcher: str, links: Sequence[Link], no_link: bool, backend: str) -> str:
    if links:
        return ", then ".join(map(str, links))
    on_loopback = backend == "gloo" and os.environ.get("GLOO_SOCKET_IFNAME") in LOOPBACKS
    if launcher == "torchrun" and not on_loopback:  # nccl chooses what carries each message
        return os.environ.get("DPVIZ_NETWORK", "network")  # whoever starts the ranks knows which
    return "loopback (no link possible here)" if no_link else "loopback"
