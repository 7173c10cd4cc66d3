"""Averaging in a group where a rank did not use a parameter, or nobody did, or it is frozen."""

from functools import partial

import pytest

from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import launch


class Experts:
    """Two layers; `used` says which one a rank uses."""

    def __init__(self, torch):
        self.one, self.two = (torch.nn.Linear(3, 3, bias=False) for _ in range(2))
        self.model = torch.nn.ModuleList([self.one, self.two])


def averaged(config):
    import torch
    import torch.distributed as dist

    from dpviz.parallel.hybrid import average_gradients

    model = Experts(torch)
    layer = (model.one, model.two)[dist.get_rank() * config["apart"]]
    layer(torch.ones(1, 3)).sum().backward()
    frozen = torch.nn.Linear(3, 3).requires_grad_(False)
    average_gradients(torch.nn.ModuleList([model.model, frozen]), dist.group.WORLD)
    return [model.one.weight.grad.tolist(), model.two.weight.grad.tolist(), [p.grad for p in frozen.parameters()]]


@pytest.mark.parametrize(("apart", "expected"), [(True, (0.5, 0.5)), (False, (1.0, 0.0))])
def test_a_parameter_that_was_not_used_counts_as_zero_and_a_frozen_one_is_left_alone(apart, expected):
    wanted = [[[value] * 3] * 3 for value in expected]
    assert launch(averaged, {"apart": apart}, world_size=2).results == [[*wanted, [None, None]]] * 2


def sharded(config):
    import torch
    import torch.distributed as dist

    from dpviz.parallel.hybrid import HybridSharded

    model = Experts(torch)
    before = torch.cat([p.detach().flatten() for p in model.model.parameters()])
    model.two.requires_grad_(not config["frozen"])
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    optimizer = partial(torch.optim.SGD, lr=1.0)
    copies = HybridSharded(model.model, optimizer=optimizer, shard=dist.group.WORLD, replicate=alone)
    copies.gather()
    (model.one, model.two)[dist.get_rank()](torch.ones(1, 3)).sum().backward()
    copies.reduce()
    copies.step()
    copies.gather()
    after = torch.cat([p.detach().flatten() for p in model.model.parameters()])
    return (before - after).tolist()


def test_shards_of_a_parameter_that_one_rank_did_not_use_get_their_average():
    for moved in launch(sharded, {"frozen": False}, world_size=2).results:
        assert moved == pytest.approx([0.5] * 18)


def test_a_frozen_parameter_cannot_be_sharded_and_that_is_said():
    with pytest.raises(RankError, match="a parameter is frozen, but HybridSharded trains them all"):
        launch(sharded, {"frozen": True}, world_size=2)
