"""The models: two perceptrons, a small transformer and a single weight. Plain torch; nothing here knows of ranks.

mlp          digits (n, 64) -> (n, 10): one hidden layer of 64. Text (n, 16) -> (n, 16, vocabulary): the same for every
             character, after an embedding.
deep         digits or text, as mlp, through `layers` residual layers of `width`, which can be fetched one by one.
transformer  a pre-norm block of width 32, two heads. Text: causal, one prediction a character. Digits: the eight
             rows of an image are eight tokens, and the mean over them is classified.
weight       y = w * x, one parameter, w = 1 at the start; its loss is y itself, so its gradient the sum or mean of x.

`norm` is what stands after the hidden layer (in the transformer, after the hidden layer of the
block's perceptron). A layer before batch norm has no bias: the norm
would take it out again, and its gradient would be 0.
Shapes: n samples, t tokens, d features; a model casts floating-point input to its own dtype.
"""

import torch
from torch import nn
from torch.nn import functional as F

NAMES = ("mlp", "deep", "transformer", "weight")
NORMS = ("none", "layer", "batch")
HIDDEN = 64  # of the perceptron
WIDTH, HEADS = 32, 2  # of the transformer
ROW = 8  # pixels in a row of a digit, and rows in a digit


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation over the last dimension, (n, d) or (n, t, d): the statistics mix all samples of the batch."""

    def forward(self, x):
        return super().forward(x.flatten(0, -2)).view_as(x)


def norm_layer(kind, width):
    """The layer called `kind`: none, layer or batch."""
    layers = {"none": nn.Identity, "layer": lambda: nn.LayerNorm(width), "batch": lambda: BatchNorm(width)}
    return layers[kind]()


class MLP(nn.Module):
    def __init__(self, dataset, norm):
        super().__init__()
        is_text = dataset.name == "text"
        self.embedding = nn.Embedding(dataset.inputs, HIDDEN) if is_text else nn.Identity()
        self.hidden = nn.Linear(HIDDEN if is_text else dataset.inputs, HIDDEN, bias=norm != "batch")
        self.norm = norm_layer(norm, HIDDEN)
        self.head = nn.Linear(HIDDEN, dataset.outputs)

    def forward(self, x):
        x = self.embedding(_as_input(x, self.head))
        return self.head(F.gelu(self.norm(self.hidden(x))))


class Layer(nn.Module):
    """x + out(gelu(hidden(x))), twice as wide inside."""

    def __init__(self, width):
        super().__init__()
        self.hidden, self.out = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.out(F.gelu(self.hidden(x)))


class Deep(nn.Module):
    """`layers` residual layers between an embedding and a head."""

    def __init__(self, dataset, layers, width):
        super().__init__()
        embedding = nn.Embedding if dataset.name == "text" else nn.Linear
        self.embedding = embedding(dataset.inputs, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.head = nn.Linear(width, dataset.outputs)

    def forward(self, x):
        x = self.embedding(_as_input(x, self.embedding))
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Block(nn.Module):
    """x + attention(norm(x)), then x + perceptron(norm(x))."""

    def __init__(self, norm, *, causal):
        super().__init__()
        self.causal = causal
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.projection = nn.Linear(WIDTH, WIDTH)
        self.mlp_norm = nn.LayerNorm(WIDTH, bias=norm != "batch")
        self.hidden = nn.Linear(WIDTH, 2 * WIDTH, bias=norm != "batch")
        self.norm = norm_layer(norm, 2 * WIDTH)
        self.out = nn.Linear(2 * WIDTH, WIDTH)

    def attention(self, x):
        n, t, d = x.shape
        heads = self.query_key_value(x).view(n, t, 3, HEADS, d // HEADS)
        mixed = F.scaled_dot_product_attention(*heads.permute(2, 0, 3, 1, 4), is_causal=self.causal)
        return self.projection(mixed.transpose(1, 2).reshape(n, t, d))

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.out(F.gelu(self.norm(self.hidden(self.mlp_norm(x)))))


class Transformer(nn.Module):
    def __init__(self, dataset, norm):
        super().__init__()
        self.is_text = dataset.name == "text"
        self.embedding = nn.Embedding(dataset.inputs, WIDTH) if self.is_text else nn.Linear(ROW, WIDTH)
        tokens = dataset.x.shape[1] if self.is_text else ROW
        self.position = nn.Parameter(0.02 * torch.randn(tokens, WIDTH))
        self.block = Block(norm, causal=self.is_text)
        self.final_norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, dataset.outputs)

    def forward(self, x):
        x = _as_input(x, self.head)
        x = x if self.is_text else x.unflatten(-1, (ROW, ROW))
        x = self.final_norm(self.block(self.embedding(x) + self.position))
        return self.head(x if self.is_text else x.mean(dim=1))


class Weight(nn.Module):
    """y = w * x, one y a number in x, as one long vector."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.w * x.to(self.w.dtype).flatten()


def build(name, dataset, *, norm="none", seed=0, dtype=torch.float32, layers=4, width=64):
    """A new model for `dataset`: equal for equal arguments, whatever was drawn from the global random state before.
    `layers` and `width` are those of "deep", which has no norm.

    The initial values are drawn on the CPU in float32, then cast and moved to torch's default device: a float64 model
    starts exactly where the float32 one does, and one on a GPU where the CPU's does.
    ValueError for an unknown name or norm, and for a pair that cannot work ("count" has no labels to learn).
    """
    if name not in NAMES:
        raise ValueError(f"model is {name!r}, but must be one of {', '.join(NAMES)}")
    if norm not in NORMS:
        raise ValueError(f"norm is {norm!r}, but must be one of {', '.join(NORMS)}")
    if name in ("weight", "deep") and norm != "none":
        raise ValueError(f"norm is {norm!r}, but the model {name!r} has no layer to normalise: use norm 'none'")
    if name != "weight" and dataset.name == "count":
        raise ValueError(f"model is {name!r}, but the data 'count' has no labels: use the model 'weight'")
    default_dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.random.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPUs, too
        torch.set_default_dtype(torch.float32)
        try:
            makers = {
                "weight": Weight,
                "deep": lambda: Deep(dataset, layers, width),
                "mlp": lambda: MLP(dataset, norm),
                "transformer": lambda: Transformer(dataset, norm),
            }
            model = makers[name]()
        finally:
            torch.set_default_dtype(default_dtype)
    return model.to(device=torch.get_default_device(), dtype=dtype)


def loss(model, x, y, reduction="mean"):
    """Cross entropy, mean or sum over all predictions; for `Weight` the mean or sum of w * x. A scalar.

    It is computed in float32 at least: a sum of many terms would lose most of them in bfloat16.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"reduction is {reduction!r}, but must be mean or sum")
    out = model(x)
    out = out.to(torch.promote_types(out.dtype, torch.float32))
    if out.ndim == 1:  # a Weight's: there is nothing to classify
        return out.mean() if reduction == "mean" else out.sum()
    return F.cross_entropy(out.flatten(0, -2), y.flatten(), reduction=reduction)


def units(model):
    """Return the model's layers, in the order in which forward uses them: what ZeRO and FSDP fetch one by one.
    Parameters of the model itself belong to none.
    """
    children = [m for child in model.children() for m in (child if isinstance(child, nn.ModuleList) else [child])]
    return [child for child in children if any(True for _ in child.parameters())]


def _as_input(x, layer):
    return x.to(layer.weight.dtype) if x.is_floating_point() else x
