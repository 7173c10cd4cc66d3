"""The course of a ring: what each rank holds and has sent after each step, worked out from the transfers that the ranks
recorded. Numbers only; the ring's figure draws them.
"""

from dataclasses import dataclass

import numpy as np

PHASES = ("reduce_scatter", "all_gather")


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One message: `contributions` ranks are summed in the `chunk` that `sender` sent to the rank `to`."""

    sender: int
    to: int
    phase: str
    chunk: int
    bytes: int
    contributions: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Course:
    """n steps of k ranks and k chunks.

    steps    n lists of the Transfers of one step; none where only the kernel's counters tell of one whole call
    held     (n + 1, k, k) ranks summed in what a rank holds of a chunk: before the first step, and after each
    sent     (n + 1, k, k) bytes so far, from the rank of the row to that of the column; without steps those of the call
    totals   (n + 1, k) bytes so far by rank; of some calls only these are known, and `sent` is 0
    counted  (k, k) as `sent`, of the whole call over S: what the kernel counted with the largest payload, or None
    full     ranks summed in a chunk that is done: k, or 1 for an all-gather alone
    payload  bytes of all chunks: S
    """

    steps: list[list[Transfer]]
    held: np.ndarray
    sent: np.ndarray
    totals: np.ndarray
    counted: np.ndarray | None
    full: int
    payload: int

    @property
    def k(self) -> int:
        return self.held.shape[1]

    @property
    def watched(self) -> bool:
        """Whether the course is known step by step; that of one rank, without any step, is."""
        return bool(self.steps) or self.k == 1

    def pairs(self) -> list[tuple[int, int, bool]]:
        """Without steps: who sends to whom, headers aside, and whether nothing comes back by the same way."""
        if self.watched or not self.sent.any():
            return []
        sends = self.sent[0] > 0.02 * self.sent.max()
        return [(int(a), int(b), self.k == 2 or not sends[b, a]) for a, b in np.argwhere(sends)]

    def phase(self, number: int) -> tuple[str, int, int]:
        """Of step `number` (from 1): its phase, its number within that phase, and how many steps the phase has."""
        phases = [step[0].phase for step in self.steps]
        name = phases[number - 1]
        return name, phases[:number].count(name), phases.count(name)


def course(run) -> Course:
    """The course of a call of `all_reduce`: step by step from results[rank]["transfers"], which a ring by hand records;
    without them the whole call at once, from results[rank]["sent_to"], which the kernel counted.
    """
    k = len(run.results)
    told = [(rank, one) for rank, result in enumerate(run.results) for one in result.get("transfers") or []]
    if not told:
        return _whole_call(run, k)
    numbers = sorted({(PHASES.index(one["phase"]), one["step"]) for _, one in told})
    steps: list[list[Transfer]] = [[] for _ in numbers]
    for sender, one in told:
        steps[numbers.index((PHASES.index(one["phase"]), one["step"]))].append(_transfer(sender, one))
    sizes = {one.chunk: one.bytes for step in steps for one in step}
    held, sent = [_at_first(steps, k)], [np.zeros((k, k), dtype=int)]
    for step in steps:
        now, bytes_now = held[-1].copy(), sent[-1].copy()
        for one in step:
            adds = held[0][one.to, one.chunk] if one.phase == "reduce_scatter" else 0
            now[one.to, one.chunk] = one.contributions + adds
            bytes_now[one.sender, one.to] += one.bytes
        held.append(now)
        sent.append(bytes_now)
    sent = np.array(sent)
    return Course(
        steps=steps,
        held=np.array(held),
        sent=sent,
        totals=sent.sum(axis=2),
        counted=_counted(run),
        full=1 if all(one.phase == "all_gather" for step in steps for one in step) else k,
        payload=sum(sizes.values()),
    )


def _whole_call(run, k: int) -> Course:
    payload, counted = max(run.facts["payload_bytes"]), _counted(run)
    sent = np.zeros((1, k, k), dtype=int) if counted is None else np.rint(payload * counted).astype(int)[None]
    by_rank = np.array(run.facts["bytes_over_payload_by_rank"][int(np.argmax(run.facts["payload_bytes"]))])
    return Course(
        steps=[],
        held=np.ones((1, k, k), dtype=int),
        sent=sent,
        totals=np.rint(payload * by_rank).astype(int)[None],
        counted=counted,
        full=k,
        payload=payload,
    )


def _counted(run) -> np.ndarray | None:
    told = [result.get("sent_to") for result in run.results]
    return None if None in told else np.array(told, dtype=float) / max(run.facts["payload_bytes"])


def _transfer(sender: int, one: dict) -> Transfer:
    kept = {name: one[name] for name in ("to", "phase", "chunk", "bytes", "contributions")}
    return Transfer(sender=sender, seconds=one["end_s"] - one["start_s"], **kept)


def _at_first(steps: list, k: int) -> np.ndarray:
    """(k, k): each rank begins with a contribution of its own to every chunk; to gather, with one chunk alone."""
    if steps[0][0].phase == "reduce_scatter":
        return np.ones((k, k), dtype=int)
    held = np.zeros((k, k), dtype=int)
    for one in steps[0]:
        held[one.sender, one.chunk] = one.contributions
    return held
