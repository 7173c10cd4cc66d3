"""The closed form of what rank means make of unequal ranks, against the definitions and a reported case."""

import numpy as np
import pytest

from dpviz.theory.unequal import error_of_rank_means, imbalance


def test_the_closed_form_is_the_error_of_the_rank_means():
    means = np.array([[1.0, 0.0], [3.0, 1.0]])
    true = (10 * means[0] + 90 * means[1]) / 100
    expected = np.linalg.norm(means.mean(0) - true) / np.linalg.norm(true)
    assert error_of_rank_means([10, 90], means) == pytest.approx(expected)
    assert error_of_rank_means([10, 90], means, 0) == 0
    assert error_of_rank_means([40, 160], [[90 / 40], [1.0]]) == pytest.approx(0.3)  # 1.625 for 1.25
    assert imbalance([10, 90]) == 9 and imbalance([0, 3]) == float("inf")
    with pytest.raises(ValueError, match="numbers above 0"):
        error_of_rank_means([0, 3], means)
