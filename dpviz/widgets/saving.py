"""Saves what a figure shows beside the notebook: the records as a table, or the whole run."""

from __future__ import annotations

from pathlib import Path

from dpviz.records import Run


def save_beside(run: Run, kind: str, *, settings: str) -> Path:
    """Write `run` into the working directory and return the path. A file that is there already is left alone.

    kind: "csv" (run.frame()) or "json" (Run.load reads it); settings: "k=4, K=2", which becomes part of the name
    """
    stem = "-".join([run.experiment, *settings.replace("=", "").replace(" ", "").split(",")])
    stem = "".join(sign if sign.isalnum() or sign in "-_." else "_" for sign in stem)
    tries = (Path(f"{stem}{'' if n == 1 else f'_{n}'}.{kind}") for n in range(1, 10_000))
    path = next(path for path in tries if not path.exists())
    if kind == "csv":
        run.frame().to_csv(path, index=False)
    else:
        run.save(path)
    return path.resolve()
