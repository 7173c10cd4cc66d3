"""The data sets: small, real, shipped with dpviz or scikit-learn. Nothing is downloaded; nothing here knows of ranks.

digits   1,797 images of 8 x 8 pixels, ten classes (scikit-learn's load_digits). A pixel is a multiple of 1/16, so that
         it is exact in bfloat16.
text     windows of 16 characters of a public-domain text, each with the 16 characters that come next.
count    x = 1, 2, 3, ...: for examples worked by hand, y = w * x. Never shuffled: sample i is x = i + 1.

A data set lies in the host's memory; what is taken from it comes on torch's default device.
"""

import gzip
import importlib.util
import itertools
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy
import torch

NAMES = ("digits", "text", "count")
WINDOW = 16  # characters of text in one sample
HOST = torch.device("cpu")  # as a context: tensors made within lie in the host's memory, whatever the default device


@dataclass(frozen=True, eq=False)
class Dataset:
    """All samples of one data set. The tensors are shared by everyone in this process: do not change them in place."""

    name: str
    x: torch.Tensor  # digits (1797, 64) float64; text (n, 16) int64; count (n, 1) float64
    y: torch.Tensor  # digits (1797,) int64; text (n, 16) int64; count (n,) int64, zeros that nothing reads
    inputs: int  # numbers in a sample (digits 64, count 1); for text the size of the vocabulary
    outputs: int  # classes to choose from; for text the size of the vocabulary; count 1
    vocabulary: str = ""  # text: the character at position i is token i

    def __len__(self):
        return len(self.x)


@cache
def load(name):
    """The data set called `name`, made once a process. ValueError for a name that does not exist."""
    makers = {"digits": _digits, "text": _text, "count": _count}
    if name not in makers:
        raise ValueError(f"data is {name!r}, but must be one of {', '.join(NAMES)}")
    with HOST:
        return makers[name]()


def samples(dataset, start, stop, seed=0):
    """Samples `start` to `stop` (not included) of an endless, shuffled stream: (x, y), each with stop - start rows.

    Every epoch is a permutation of its own, drawn from `seed` and the epoch's number alone. Any rank can therefore ask
    for any piece of the stream, and gets what every other rank would get. "count" is not shuffled and never starts
    again.
    """
    if not 0 <= start <= stop:
        raise ValueError(f"samples {start} to {stop} were asked for, but 0 <= start <= stop must hold")
    if dataset.name == "count":
        x = torch.arange(start + 1, stop + 1, dtype=torch.float64).unsqueeze(1)
        return x, torch.zeros(stop - start, dtype=torch.int64)
    with HOST:
        index = _indices(len(dataset), start, stop, seed)
    return _on_default_device(dataset.x[index], dataset.y[index])


def text_lines():
    """The paragraphs of the text, one string each: 8 to 2,337 characters long, so their token counts differ widely."""
    return _text_file().splitlines()


def sequence(line, length):
    """`length` characters of the text from the start of a line on, and the ones that come next: x and y (length,)
    int64.

    Lines are counted from 0 and start again after the last one, and so does the text.
    """
    starts = _line_starts()
    tokens = load("text").x.flatten()
    with HOST:
        index = (starts[line % len(starts)] + torch.arange(length + 1)) % len(tokens)
    return _on_default_device(tokens[index[:-1]], tokens[index[1:]])


def _on_default_device(x, y):
    device = torch.get_default_device()
    return x.to(device), y.to(device)


def _indices(size, start, stop, seed):
    pieces = [torch.empty(0, dtype=torch.int64)]
    while start < stop:
        epoch, offset = divmod(start, size)
        taken = min(size - offset, stop - start)
        pieces.append(_permutation(size, seed, epoch)[offset : offset + taken])
        start += taken
    return torch.cat(pieces)


@cache
def _permutation(size, seed, epoch):
    # A seed for each epoch that is far from its neighbours', so that (seed 0, epoch 1) is not (seed 1, epoch 0).
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(size, generator=generator)


def _digits():
    # scikit-learn's own file, read without importing scikit-learn: that costs a second and 100 MB in whoever does it
    package = importlib.util.find_spec("sklearn").submodule_search_locations[0]
    with gzip.open(Path(package, "datasets", "data", "digits.csv.gz"), "rt") as file:
        table = numpy.loadtxt(file, delimiter=",")
    pixels, labels = table[:, :-1], table[:, -1]
    x = torch.from_numpy(pixels).to(torch.float64) / 16
    return Dataset(name="digits", x=x, y=torch.from_numpy(labels).to(torch.int64), inputs=64, outputs=10)


def _text():
    text = _text_file()
    vocabulary = "".join(sorted(set(text)))
    token_of = {character: token for token, character in enumerate(vocabulary)}
    tokens = torch.tensor([token_of[character] for character in text])
    windows = (len(tokens) - 1) // WINDOW
    x = tokens[: windows * WINDOW].view(windows, WINDOW)
    y = tokens[1 : windows * WINDOW + 1].view(windows, WINDOW)
    size = len(vocabulary)
    return Dataset(name="text", x=x, y=y, inputs=size, outputs=size, vocabulary=vocabulary)


def _count():
    x = torch.arange(1, 257, dtype=torch.float64).unsqueeze(1)  # up to 256 every whole number is exact in bfloat16
    return Dataset(name="count", x=x, y=torch.zeros(256, dtype=torch.int64), inputs=1, outputs=1)


@cache
def _line_starts():
    lengths = [0, *(len(line) + 1 for line in text_lines()[:-1])]
    return list(itertools.accumulate(lengths))


@cache
def _text_file():
    return files("dpviz").joinpath("texts/founding.txt").read_text(encoding="ascii")
