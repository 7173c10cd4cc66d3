"""Fully sharded: by hand and by FSDP2 the losses of DDP, and what a step gathers, scatters, holds and hides."""

import pytest

from dpviz.questions.fsdp import Config
from dpviz.ranks.launch import launch

EXPERIMENT = "dpviz.experiments.fsdp:experiment"


def run(world_size=4, **fields):
    return launch(EXPERIMENT, Config(**{"dtype": "float64", **fields}), world_size=world_size, timeout=120)


def facts(world_size=4, **fields):
    return run(world_size, **fields).facts


@pytest.mark.parametrize("implementation", ["by_hand", "torch"])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        pytest.param({"prefetch": 2, "optimizer": "sgd", "data": "text"}, marks=pytest.mark.thorough),
        pytest.param({"reshard_after_forward": False, "reduce_scatter": "gloo"}, marks=pytest.mark.thorough),
        {"wrap": "some_layers", "accumulation_steps": 3},
        pytest.param({"wrap": "whole_model", "accumulation_steps": 2, "sync": "last"}, marks=pytest.mark.thorough),
        {"width": 3, "layers": 1},
    ],
    ids=[
        "each layer",
        "prefetch, text",
        "kept, gloo",
        "some layers, K = 3",
        "whole, reduced last",
        "fewer rows than k",
    ],
)
def test_the_losses_are_those_of_ddp(fields, implementation):
    found = facts(5, implementation=implementation, steps=6, **fields)
    assert found["max_difference_from_ddp"] < 1e-10


@pytest.mark.parametrize("implementation", ["by_hand", "torch"])
@pytest.mark.parametrize(
    "fields, gathers, scatters, units",
    [
        ({}, 12, 6, 3),  # six groups: embedding, four layers, head
        ({"reshard_after_forward": False}, 6, 6, 2),
        pytest.param({"wrap": "whole_model"}, 1, 1, 2, marks=pytest.mark.thorough),
        pytest.param({"accumulation_steps": 4}, 48, 24, 12, marks=pytest.mark.thorough),
        ({"accumulation_steps": 4, "sync": "last"}, 48, 6, 9),
        pytest.param({"reduce_scatter": "gloo"}, 12, 6, 4, marks=pytest.mark.thorough),
    ],
    ids=["each layer", "kept", "whole model", "K = 4", "K = 4, reduced last", "gloo"],
)
def test_what_a_step_gathers_and_scatters(implementation, fields, gathers, scatters, units):
    """`units` of (k-1)/k * P on the wire; padding and gloo's headers add less than 4 % to this small model."""
    found = facts(implementation=implementation, steps=2, **fields)
    if implementation == "by_hand":  # the head is kept by nobody: it is a layer as the others
        assert found["groups"] in (6, 1)
    assert (found["all_gathers"], found["reduce_scatters"]) == (gathers, scatters)
    assert found["wire_over_payload"] == pytest.approx(units * 3 / 4, rel=0.04)


@pytest.mark.parametrize("implementation", ["by_hand", "torch"])
def test_a_rank_holds_its_part_and_whole_gradients_only_where_sync_waits(implementation):
    each = facts(implementation=implementation, steps=2)
    whole = each["whole_model_bytes"]
    for held in each["bytes_per_rank"]:
        assert held["parameters"] == pytest.approx(whole / 4, rel=0.02)
        assert held["gradients"] == pytest.approx(whole / 4, rel=0.02)
        assert held["optimizer"] == pytest.approx(2 * whole / 4, rel=0.02)
    waiting = run(implementation=implementation, steps=2, accumulation_steps=3, sync="last")
    gradients = waiting.results[0]["memory"]["held"]["gradients"]
    assert max(gradients) >= whole  # unsharded until the last micro-batch


@pytest.mark.parametrize("implementation", ["by_hand", "torch"])
def test_freeing_each_layer_costs_less_memory_than_keeping_them_and_these_less_than_one_group(implementation):
    settings = ({}, {"reshard_after_forward": False}, {"wrap": "whole_model"})
    peaks = [
        max(facts(implementation=implementation, steps=2, layers=8, **fields)["peak_bytes"]) for fields in settings
    ]
    assert peaks[0] < 0.9 * peaks[1] < peaks[2]


@pytest.mark.parametrize("implementation", ["by_hand", "torch"])
def test_the_timeline_is_in_order(implementation):
    result = run(2, implementation=implementation, steps=2).results[0]
    forward = [event for event in result["timeline"] if event["name"].startswith("forward")]
    backward = [event for event in result["timeline"] if event["name"].startswith("backward")]
    assert [event["name"].removeprefix("forward ") for event in forward] == result["group_names"]
    assert [event["name"].removeprefix("backward ") for event in backward] == result["group_names"][::-1]
    assert all(event["end_s"] >= event["start_s"] for event in result["timeline"])
    assert max(event["end_s"] for event in forward) < min(event["start_s"] for event in backward) + 1e-3
    for unit, name in enumerate(result["group_names"]):
        there = [(one["from_s"], one["to_s"]) for one in result["whole"] if one["unit"] == unit]
        used = [e for e in forward + backward if e["name"].endswith(name)]
        assert len(there) == 2  # freed in between
        assert all(any(a - 1e-4 <= e["start_s"] and e["end_s"] <= b + 1e-4 for a, b in there) for e in used)


@pytest.mark.quiet
def test_prefetch_hides_gathers_by_hand_and_torch_waits_on_gloo():
    by_hand = facts(2, implementation="by_hand", prefetch=1, layers=8, width=128, micro_batch=64, steps=2)
    assert by_hand["hidden_fraction"] > 0.2
    by_torch = run(2, implementation="torch", prefetch=1, layers=8, width=128, micro_batch=64, steps=2)
    assert by_torch.facts["hidden_fraction"] < 0.05  # measured: gloo's threads against the calls
    assert by_torch.facts["gather_s"] > 0


@pytest.mark.parametrize("reshard", [True, False])
def test_tied_and_frozen_parameters_by_hand(reshard):
    def train(sharded):
        import torch
        from torch import nn

        from dpviz.parallel.fsdp import FullySharded

        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)).double()
        model[2].weight = model[0].weight
        model[1].bias.requires_grad_(False)
        x, losses = torch.linspace(-1, 1, 24, dtype=torch.float64).view(4, 6), []
        if sharded:
            whole = FullySharded(model, layers=list(model), reshard_after_forward=reshard, prefetch=1)
            parameters, backward = whole.shards(), whole.backward
        else:
            parameters, backward = [p for p in model.parameters() if p.requires_grad], torch.Tensor.backward
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
        for _ in range(4):
            loss = model(x).pow(2).sum()
            backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    expected = launch(train, False, world_size=2).results[0]
    for losses in launch(train, True, world_size=4).results:
        assert losses == pytest.approx(expected, abs=1e-12)


def test_alone_nothing_travels():
    found = facts(1, implementation="by_hand", steps=2)
    assert found["max_difference_from_ddp"] < 1e-12 and found["wire_bytes"] == [0]


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"prefetch": -1}, "prefetch is -1, but it must be a whole number from 0 to 8"),
        ({"wrap": "none"}, "wrap is 'none', but it must be one of each_layer"),
        ({"mixed_precision": True, "implementation": "by_hand"}, "mixed_precision needs implementation torch"),
        ({"mixed_precision": True, "dtype": "float64"}, "mixed_precision needs implementation torch and dtype float32"),
    ],
)
def test_wrong_values_are_sentences(fields, said):
    with pytest.raises(ValueError, match=said):
        Config(**fields)
