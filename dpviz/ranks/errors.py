"""The two ways a launch can end without a result."""

from __future__ import annotations


class Stopped(RuntimeError):
    """The launch was stopped on purpose: by its Stop button, or by Job.stop()."""


class RankError(RuntimeError):
    """A launch failed on a rank.

    ranks      whose fault it was, as far as can be told
    why        one sentence, the same each time: no ports, no times, no temporary paths (notebooks store it)
    report     a line a rank: where each was when it ended
    traceback  the guilty rank's own, with the lines of the notebook's cell, or "" where it left none
    frames     the same as [(file, line, function)]
    kind, message    the exception's class name and text, or "" where no exception was raised
    """

    def __init__(self, why: str, *, ranks=(), report="", traceback="", frames=(), kind="", message=""):
        super().__init__(why)
        self.why, self.ranks, self.report, self.traceback = why, list(ranks), report, traceback
        self.frames, self.kind, self.message = list(frames), kind, message

    def _render_traceback_(self) -> list[str]:
        """What IPython shows instead of the launcher's own frames, which would tell a learner nothing."""
        lines = [f"RankError: {self.why}"]
        if self.traceback:
            lines += ["", *self.traceback.rstrip().splitlines()]
        return [*lines, "", "Where every rank was:", *self.report.splitlines()]
