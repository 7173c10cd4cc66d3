"""Unequal batches: the reported cases to the digits, the rule that is right, and what happens with nothing."""

import math

import numpy
import pytest

from dpviz.data import sequence, text_lines
from dpviz.experiments.unequal import experiment
from dpviz.questions.unequal import Config
from dpviz.ranks.launch import launch


def facts(tokens, loss_sums=None, **fields):
    return launch(experiment, Config(tokens=tokens, loss_sums=loss_sums, **fields)).facts


class TestCases:
    def test_2_the_loss_summed_over_ranks_before_backward(self):
        found = facts([[1], [3]], [[8], [3]])
        assert found["gradient_norms"]["all_reduced_loss"] == 1.375
        assert found["gradient_norms"]["weighted"] == found["reference_norm"] == 2.75

    def test_3_the_mean_of_micro_batch_means(self):
        found = facts([[10, 90]], [[30, 90]])
        assert found["mean_of_micro_means"] == pytest.approx(2.0)
        assert found["global_mean"] == pytest.approx(1.2)
        assert facts([[10], [90]], [[30], [90]])["mean_of_rank_means"] == pytest.approx(2.0)

    def test_4_accumulation_mended_and_data_parallelism_not(self):
        found = facts([[10, 30], [60, 100]], [[30, 60], [60, 100]])
        assert [found[name] for name in ("mean_of_micro_means", "mean_of_rank_means", "weighted", "global_mean")] == [
            1.75,
            1.625,
            1.25,
            1.25,
        ]
        assert found["relative_bias"] == pytest.approx(0.3)
        assert found["gradient_error_naive"] == pytest.approx(0.3)
        assert found["gradient_error_weighted"] == 0

    def test_5_token_weighting(self):
        found = facts([[64], [2000]], [[128], [1000]])
        assert found["mean_of_rank_means"] == 1.25
        assert found["weighted"] == pytest.approx(0.54651, abs=5e-6)

    def test_7_seven_and_six_samples(self):
        found = facts([[7], [6]], [[7], [84]])
        assert (found["mean_of_rank_means"], found["weighted"]) == (pytest.approx(7.5), pytest.approx(7.0))

    def test_18_join_divides_by_the_world_size_that_one_chooses(self):
        uneven = {"tokens": [[1], [1, 1, 1]], "loss_sums": [[1], [11, 12, 13]]}
        assert facts(**uneven, join="initial")["join_gradient_norms"] == pytest.approx([6, 6, 6.5])
        assert facts(**uneven, join="effective")["join_gradient_norms"] == pytest.approx([6, 12, 13])

    @pytest.mark.parametrize("model", ["mlp", "transformer"])
    def test_22_a_real_model_on_8_and_32_tokens(self, model):
        found = facts([[8], [32]], model=model)
        assert 0.1 < found["gradient_error_naive"] < 10
        assert found["gradient_error_weighted"] < 1e-14


def test_the_weighted_rule_is_right_on_many_ranks_with_real_text():
    found = facts([[5, 200], [17, 1], [64, 33], [2, 900]], model="transformer")
    assert 0 < found["gradient_error_weighted"] < 1e-14
    assert found["gradient_error_naive"] > 0.1
    assert found["weighted"] == pytest.approx(found["global_mean"], rel=1e-14)


def test_equal_counts_need_no_rule():
    found = facts([[20, 20], [20, 20]])
    assert max(found["gradient_error_micro"], found["gradient_error_naive"], found["gradient_error_weighted"]) < 1e-14


def test_with_sequences_of_equal_weight_the_micro_means_are_right():
    found = facts([[8, 100], [32, 16]], objective="sequence")
    assert found["gradient_error_micro"] < 1e-14
    assert found["gradient_error_weighted"] < 1e-14
    assert found["gradient_error_naive"] > 0.01


def test_a_mask_leaves_the_second_half_of_each_sequence():
    found = facts([[8, 9], [32, 1]], mask="response_only")
    assert found["tokens_in_loss"] == [[4, 5], [16, 1]]
    assert found["gradient_error_weighted"] < 1e-14


def test_a_rank_without_tokens_spoils_its_mean_and_not_the_weighted_one():
    found = facts([[0], [32]])
    assert math.isnan(found["mean_of_rank_means"]) and math.isnan(found["relative_bias"])
    assert found["weighted"] == pytest.approx(found["global_mean"])
    assert found["gradient_error_naive"] == pytest.approx(0.5)  # its gradient is 0, and halves the other's
    assert found["token_weights"]["mean_of_rank_means"] == [[None], [0.5]]


def test_what_a_token_weighs_is_what_autograd_and_the_all_reduce_make_of_it():
    found = facts([[10, 30], [60, 100]], [[30, 60], [60, 100]])["token_weights"]
    assert sum(found["mean_of_micro_means"], []) == pytest.approx([200 / 40, 200 / 120, 200 / 240, 200 / 400])
    assert sum(found["mean_of_rank_means"], []) == pytest.approx([200 / 80, 200 / 80, 200 / 320, 200 / 320])
    assert sum(found["weighted"], []) == pytest.approx([1, 1, 1, 1])
    by_sequence = facts([[10, 30], [60, 100]], objective="sequence")["token_weights"]["weighted"]
    assert sum(by_sequence, []) == pytest.approx([200 / (4 * count) for count in (10, 30, 60, 100)])
    masked = facts([[10], [30]], mask="response_only")["token_weights"]["mean_of_rank_means"]
    assert sum(masked, []) == pytest.approx([20 / 10, 20 / 30])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tokens": [[0], [0]]}, "no token at all"),
        ({"tokens": [[1], [2, 3]]}, "without join all need as many"),
        ({"tokens": [[-1]]}, "rows of whole numbers from 0 to 4096"),
        ({"tokens": [[1.5]]}, "rows of whole numbers"),
        ({"tokens": []}, "rows of whole numbers"),
        ({"tokens": [[]]}, "rows of whole numbers"),
        ({"tokens": 3}, "such as 10,30/60,100"),
        ({"tokens": [[1], [2]], "loss_sums": [[1], [math.nan]]}, "loss_sums is"),
        ({"tokens": [[1], [2]], "loss_sums": [[1]]}, "the shape of tokens"),
        ({"tokens": [[1], [0]], "loss_sums": [[1], [2]]}, "can have none"),
        ({"tokens": [[1]], "loss_sums": [[1]], "mask": "response_only"}, "needs a model"),
    ],
)
def test_what_cannot_be_is_a_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        Config(**fields)


def test_the_world_size_is_the_number_of_rows():
    config = Config(tokens=[[4], [5], [6]])
    assert len(launch(experiment, config).results) == 3
    with pytest.raises(ValueError, match="world_size is 2, but the fields describe 3 ranks"):
        launch(experiment, config, world_size=2)


def test_a_sequence_is_real_text_from_the_start_of_a_line():
    from dpviz.data import load

    vocabulary = load("text").vocabulary
    x, y = sequence(3, 40)
    text = "".join(vocabulary[token] for token in x)
    assert ("\n".join(text_lines()[3:])).startswith(text)
    assert numpy.array_equal(x[1:], y[:-1])
    assert len(sequence(0, 0)[0]) == 0
