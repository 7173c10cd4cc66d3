"""Stages that send activations forward and gradients back, against the whole model on one process."""

import pytest

from dpviz.ranks.launch import launch


def trained(micro_batches):
    import torch
    import torch.distributed as dist
    from torch import nn

    from dpviz.parallel.pipeline import Pipeline

    torch.manual_seed(0)
    layers = [nn.Linear(6, 6).double() for _ in range(4)]
    batches = [tuple(torch.randn(3, 6, dtype=torch.float64) for _ in "xy") for _ in range(micro_batches)]
    whole = nn.Sequential(*layers)
    expected = sum(nn.functional.mse_loss(whole(x), y) for x, y in batches) / len(batches)
    expected.backward()
    reference = [p.grad for p in whole.parameters()]
    whole.zero_grad(set_to_none=True)

    p, rank = dist.get_world_size(), dist.get_rank()
    stage = nn.Sequential(*layers[rank * 4 // p : (rank + 1) * 4 // p])
    pipeline = Pipeline(
        stage, loss=nn.functional.mse_loss, shape=lambda x: x.shape, group=dist.group.WORLD, dtype=torch.float64
    )
    loss = pipeline.train(batches)
    mine = reference[rank * 8 // p : (rank + 1) * 8 // p]
    worst = max((a.grad - b).abs().max().item() for a, b in zip(stage.parameters(), mine, strict=True))
    return {"loss": loss, "expected": expected.item(), "worst": worst, "sent": pipeline.sent}


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (4, 1)])
def test_gradients_are_those_of_one_process(stages, micro_batches):
    results = launch(trained, micro_batches, world_size=stages).results
    assert max(result["worst"] for result in results) < 1e-14
    assert results[-1]["loss"] == pytest.approx(results[-1]["expected"], abs=1e-14)
    assert [result["loss"] for result in results[:-1]] == [None] * (stages - 1)
    message = 8 * 3 * 6 * micro_batches
    assert [result["sent"] for result in results] == [message] + [2 * message] * (stages - 2) + [message]
