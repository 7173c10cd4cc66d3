"""Can you prove that your run is data parallel? A training run with one fault that can be switched on, under contract.

    python -m dpviz run contract --fault lr_differs --fault-rank 2 --json

Built in lesson 11.
"""

from __future__ import annotations

from dpviz import data
from dpviz.experiments.optimizer_state import train_with_fault
from dpviz.measure import fingerprint
from dpviz.questions.contract import Config

__all__ = ["Config", "experiment", "train_under_contract"]


def train_under_contract(config):
    """Train as `optimizer_state` does; return which version of the data this rank read."""
    dataset = data.load("digits")
    version = fingerprint.digest([dataset.x, dataset.y])
    yield from train_with_fault(config)
    return {"data_version": version}


experiment = train_under_contract  # the name that the command line calls it by
