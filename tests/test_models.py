"""The models: every data set, every dtype, every norm; equal for equal seeds; losses that mean what they say."""

import copy
import itertools

import pytest
import torch
from torch import nn

from dpviz import data, models

PAIRS = list(itertools.product(("mlp", "transformer"), ("digits", "text")))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def batch(name, size=8):
    dataset = data.load(name)
    return dataset, *data.samples(dataset, 0, size)


@pytest.mark.parametrize(
    "name, data_name, norm, dtype",
    list(itertools.product(("mlp", "transformer"), ("digits", "text"), models.NORMS, DTYPES)),
)
def test_every_model_takes_every_data_set_in_every_dtype(name, data_name, norm, dtype):
    dataset, x, y = batch(data_name)
    model = models.build(name, dataset, norm=norm, dtype=dtype)
    assert model(x).shape == (*y.shape, dataset.outputs)
    models.loss(model, x, y).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.dtype == dtype and parameter.grad.dtype == dtype, parameter_name
        assert parameter.grad.isfinite().all() and parameter.grad.any(), parameter_name
    assert sum(parameter.numel() for parameter in model.parameters()) < 30_000


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_equal_seeds_give_equal_parameters_whatever_the_global_state(name):
    dataset = data.load("digits")
    torch.manual_seed(1)
    first = models.build(name, dataset, seed=5)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        second = models.build(name, dataset, seed=5)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(state, torch.get_rng_state())
    other = models.build(name, dataset, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))


def test_a_float64_model_starts_where_the_float32_one_does():
    dataset = data.load("text")
    single, double = (models.build("transformer", dataset, dtype=dtype) for dtype in (torch.float32, torch.float64))
    assert all(torch.equal(a.double(), b) for a, b in zip(single.parameters(), double.parameters(), strict=True))


@pytest.mark.parametrize("name, data_name", PAIRS)
def test_the_mean_loss_is_the_sum_over_the_number_of_predictions(name, data_name):
    dataset, x, y = batch(data_name)
    model = models.build(name, dataset, dtype=torch.float64)
    mean, total = (models.loss(model, x, y, reduction) for reduction in ("mean", "sum"))
    torch.testing.assert_close(mean, total / y.numel())
    guess = torch.log(torch.tensor(float(dataset.outputs)))
    assert 0.7 * guess < mean < 1.5 * guess  # an untrained model knows nothing


@pytest.mark.parametrize("norm, mixes", [("none", False), ("layer", False), ("batch", True)])
@pytest.mark.parametrize("name, data_name", PAIRS)
def test_only_batch_norm_mixes_the_samples_of_a_batch(name, data_name, norm, mixes):
    dataset, x, _ = batch(data_name)
    model = models.build(name, dataset, norm=norm, dtype=torch.float64)
    together, apart = model(x), torch.cat([model(x[:4]), model(x[4:])])
    assert torch.allclose(together, apart, rtol=1e-9, atol=1e-12) is not mixes


def test_batch_norm_is_torchs_over_all_tokens():
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    ours, theirs = models.BatchNorm(4), nn.BatchNorm1d(4)
    torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)


def test_text_is_causal_and_digits_are_not():
    dataset, x, _ = batch("text")
    model = models.build("transformer", dataset, dtype=torch.float64)
    changed = x.clone()
    changed[:, 9] = (changed[:, 9] + 1) % dataset.inputs
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] != after[:, 9:]).any(dim=-1).all()

    dataset, x, _ = batch("digits")
    model = models.build("transformer", dataset, dtype=torch.float64)
    rows = []
    model.block.register_forward_hook(lambda _, __, out: rows.append(out.detach()))
    changed = x.clone()
    changed[:, -1] += 1
    model(x), model(changed)
    assert (rows[0][:, 0] != rows[1][:, 0]).any()  # the first row sees the last


def test_the_order_of_rows_matters_to_the_transformer():
    dataset, x, _ = batch("digits")
    model = models.build("transformer", dataset, dtype=torch.float64)
    assert not torch.allclose(model(x), model(x.view(-1, 8, 8).flip(1).flatten(1)))


def test_a_weights_gradient_is_the_sum_or_mean_of_x():
    x, y = data.samples(data.load("count"), 3, 6)  # 4, 5, 6
    for reduction, expected in (("sum", 15.0), ("mean", 5.0)):
        for dtype in DTYPES:
            model = models.build("weight", data.load("count"), dtype=dtype)
            loss = models.loss(model, x, y, reduction)
            loss.backward()
            assert loss.item() == model.w.grad.item() == expected


def test_a_weight_takes_digits_and_text_too():
    for name in ("digits", "text"):
        dataset, x, y = batch(name)
        model = models.build("weight", dataset, dtype=torch.float64)
        models.loss(model, x, y, "sum").backward()
        assert model.w.grad.item() == x.sum().item()


@pytest.mark.parametrize("name, data_name", PAIRS)
def test_both_models_learn(name, data_name):
    dataset = data.load(data_name)
    model = models.build(name, dataset)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        loss = models.loss(model, *data.samples(dataset, 32 * step, 32 * (step + 1)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < 0.7 * losses[0]


def test_a_copied_model_in_double_is_the_reference_for_bfloat16():
    dataset, x, y = batch("digits")
    model = models.build("mlp", dataset, dtype=torch.bfloat16)
    reference = copy.deepcopy(model).double()
    torch.testing.assert_close(models.loss(model, x, y).double(), models.loss(reference, x, y), rtol=1e-2, atol=0)


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (("cnn", "digits"), "model is 'cnn', but must be one of mlp, deep, transformer, weight"),
        (("mlp", "digits", "group"), "norm is 'group', but must be one of none, layer, batch"),
        (("weight", "count", "batch"), "no layer to normalise"),
        (("mlp", "count"), "the data 'count' has no labels: use the model 'weight'"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(arguments, sentence):
    name, data_name, *norm = arguments
    with pytest.raises(ValueError, match=sentence):
        models.build(name, data.load(data_name), norm=norm[0] if norm else "none")


def test_an_unknown_reduction_is_refused():
    dataset, x, y = batch("digits")
    with pytest.raises(ValueError, match="reduction is 'max', but must be mean or sum"):
        models.loss(models.build("mlp", dataset), x, y, "max")
