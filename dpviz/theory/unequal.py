"""What a mean of rank means makes of unequal ranks. Rank i of k holds n_i tokens, N in all, and g_i is their mean."""

import numpy as np


def error_of_rank_means(tokens, means, tilt=1.0):
    """|mean of the g_i - mean over all tokens| / |mean over all tokens|, if rank i held n_i ** tilt tokens.

    tokens: (k,) all above 0; means: (k, d), the g_i: gradients, or losses with d = 1. tilt 1 is as it is, and 0 are
    equal ranks, whose error is 0. Each g_i stays what it is, though on other tokens it would be another. Source: the
    definitions; mean over ranks = sum_i g_i / k, mean over tokens = sum_i n_i g_i / N.
    """
    counts, means = np.asarray(tokens, dtype=float) ** tilt, np.asarray(means, dtype=float)
    if counts.ndim != 1 or means.ndim != 2 or len(counts) != len(means) or not (counts > 0).all():
        raise ValueError("tokens must be k numbers above 0, and means a row of numbers for each of them.")
    true = counts @ means / counts.sum()
    return float(np.linalg.norm(means.mean(0) - true) / np.linalg.norm(true))


def imbalance(tokens):
    """Tokens of the longest rank over those of the shortest; infinite where one has none."""
    return max(tokens) / min(tokens) if min(tokens) else float("inf")
