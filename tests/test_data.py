"""The data sets: shapes, exactness, and a stream that every rank cuts alike."""

import pytest
import torch

from dpviz import data


def test_digits():
    digits = data.load("digits")
    assert digits.x.shape == (1797, 64) and digits.x.dtype == torch.float64
    assert digits.y.shape == (1797,) and digits.y.dtype == torch.int64
    assert (digits.inputs, digits.outputs) == (64, 10)
    assert digits.x.min() == 0 and digits.x.max() == 1
    assert torch.equal(digits.x.to(torch.bfloat16).to(torch.float64), digits.x)
    assert digits.y.bincount().min() > 170  # ten classes, all present


def test_text_targets_are_the_next_characters():
    text = data.load("text")
    assert text.x.shape == text.y.shape and text.x.shape[1] == 16 and len(text) > 3000
    assert text.inputs == text.outputs == len(text.vocabulary) == int(text.x.max()) + 1
    assert torch.equal(text.x[:, 1:], text.y[:, :-1])
    assert torch.equal(text.x[1:, 0], text.y[:-1, -1])
    assert "".join(text.vocabulary[token] for token in text.x[0]) == "The Declaration "


def test_text_lines_have_very_different_lengths_and_are_ascii():
    lines = data.text_lines()
    lengths = sorted(map(len, lines))
    assert lengths[0] < 10 and lengths[-1] > 20 * lengths[len(lengths) // 2]
    assert all(line.isascii() and line == line.strip() for line in lines)


def test_count_is_never_shuffled_and_never_ends():
    count = data.load("count")
    x, y = data.samples(count, 2, 5, seed=7)
    assert x.tolist() == [[3.0], [4.0], [5.0]] and y.tolist() == [0, 0, 0]
    assert data.samples(count, 1000, 1001)[0].item() == 1001
    assert torch.equal(data.samples(count, 0, len(count))[0], count.x)


def test_a_data_set_is_made_once():
    assert data.load("digits") is data.load("digits")


def test_an_unknown_name_is_answered_with_the_names():
    with pytest.raises(ValueError, match=r"data is 'mnist', but must be one of digits, text, count"):
        data.load("mnist")


@pytest.mark.parametrize("name", ["digits", "text"])
def test_pieces_of_the_stream_join_to_the_whole(name):
    dataset = data.load(name)
    start, stop = len(dataset) - 5, len(dataset) + 7  # across the end of an epoch
    whole = data.samples(dataset, start, stop, seed=1)
    pieces = [data.samples(dataset, i, i + 1, seed=1) for i in range(start, stop)]
    for position in (0, 1):
        assert torch.equal(whole[position], torch.cat([piece[position] for piece in pieces]))


def test_an_epoch_holds_every_sample_once_and_the_next_is_another_order():
    digits = data.load("digits")
    size = len(digits)
    first, second = (data.samples(digits, epoch * size, (epoch + 1) * size, seed=0) for epoch in (0, 1))
    for x, _ in (first, second):
        assert torch.equal(x.sum(0), digits.x.sum(0))  # multiples of 1/16: exact in any order
    assert not torch.equal(first[0], second[0])


def test_the_order_depends_on_the_seed_alone():
    digits = data.load("digits")
    torch.manual_seed(1)
    one = data.samples(digits, 0, 50, seed=3)[1]
    torch.manual_seed(2)
    assert torch.equal(one, data.samples(digits, 0, 50, seed=3)[1])
    assert not torch.equal(one, data.samples(digits, 0, 50, seed=4)[1])


def test_drawing_samples_leaves_the_global_random_state_alone():
    state = torch.get_rng_state()
    data.samples(data.load("digits"), 0, 8, seed=99)
    assert torch.equal(state, torch.get_rng_state())


def test_an_empty_piece_has_the_right_shape():
    x, y = data.samples(data.load("digits"), 4, 4)
    assert x.shape == (0, 64) and y.shape == (0,)


def test_a_reversed_piece_is_refused():
    with pytest.raises(ValueError, match="samples 5 to 4"):
        data.samples(data.load("digits"), 5, 4)
