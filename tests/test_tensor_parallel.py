"""A column-parallel and a row-parallel layer against the same two layers on one process."""

import pytest

from dpviz.ranks.errors import RankError
from dpviz.ranks.launch import launch


def parts(bias):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional as F

    from dpviz.parallel.tensor_parallel import ColumnParallel, RowParallel

    torch.manual_seed(0)
    one, two = nn.Linear(5, 12, bias=bias).double(), nn.Linear(12, 3, bias=bias).double()
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(4, 3, dtype=torch.float64)
    (weights * two(F.gelu(one(x)))).sum().backward()
    expected, x.grad = x.grad, None

    group, rank, t = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    column, row = ColumnParallel(one, group=group), RowParallel(two, group=group)
    out = row(F.gelu(column(x)))
    (weights * out).sum().backward()
    pairs = [
        (out, two(F.gelu(one(x)))),
        (x.grad, expected),
        (column.weight.grad, one.weight.grad.chunk(t)[rank]),
        (row.weight.grad, two.weight.grad.chunk(t, 1)[rank]),
    ]
    if bias:
        pairs += [(column.bias.grad, one.bias.grad.chunk(t)[rank]), (row.bias.grad, two.bias.grad)]
    return [(a - b).abs().max().item() for a, b in pairs]


@pytest.mark.parametrize(("t", "bias"), [(2, True), (4, True), (2, False)])
def test_outputs_and_gradients_are_those_of_one_process(t, bias):
    for differences in launch(parts, bias, world_size=t).results:
        assert max(differences) < 1e-13, differences


def test_rows_that_cannot_be_shared_are_a_sentence():
    with pytest.raises(RankError, match="12 rows or columns cannot be shared by 5 ranks"):
        launch(parts, True, world_size=5)
