"""The plane in which gradients are drawn: what is true of every projection, and gradients that leave it no choice."""

import numpy as np
import pytest
from made_up import equivalence_run

from dpviz.figures.plane import Plane, angle_degrees, place_labels, view


def test_the_mean_of_the_projected_arrows_is_the_projected_whole_batch():
    run = equivalence_run(8)
    local = np.array([result["local"] for result in run.results])
    plane = Plane(local, run.results[0]["reference"])
    np.testing.assert_allclose(plane.project(local).mean(0), [0, 1], atol=1e-12)
    np.testing.assert_allclose(plane.up @ plane.across, 0, atol=1e-12)
    assert 0 < plane.share < 1


def test_the_second_direction_is_the_one_of_most_spread():
    random = np.random.default_rng(1)
    reference = np.array([2.0, 0, 0])
    local = reference + random.normal(size=(50, 3)) * [1, 5, 0.1]
    plane = Plane(local, reference)
    assert abs(plane.across[1]) > 0.99
    assert plane.project(local[:1])[0, 0] > 0, "rank 0 stands on the right, so that the picture never flips"


@pytest.mark.parametrize(
    ("local", "reference"),
    [
        (np.ones((1, 5)), np.ones(5)),  # one rank
        (np.array([[1.0], [3.0]]), np.array([2.0])),  # one weight: no second direction
        (np.ones((4, 5)), np.ones(5)),  # no spread
        (np.array([[1.0, 0], [-1.0, 0]]), np.zeros(2)),  # the local ones cancel
        (np.zeros((3, 4)), np.zeros(4)),
    ],
)
def test_degenerate_gradients_have_finite_pictures(local, reference):
    plane = Plane(local, reference)
    points = plane.project(local)
    assert np.isfinite(points).all() and np.abs(points).max() <= 10
    x_range, y_range, tick = view(np.vstack([points, [[0, 1]]]))
    assert x_range[0] < x_range[1] and y_range[0] < y_range[1] and tick > 0
    assert np.isfinite(place_labels(points, gap=0.1, avoid=np.array([[0.0, 1.0]]))).all()


def test_rounding_is_not_drawn_as_a_spread():
    local = np.ones((4, 9)) + 1e-16 * np.random.default_rng(0).normal(size=(4, 9))
    plane = Plane(local, np.ones(9))
    assert not plane.across.any() and plane.share == 1


def test_the_view_moves_in_steps_and_holds_every_point():
    near = np.array([[1.0, 1.0]])
    assert view(near) == view(near * 1.02)
    for far in ([[0.0, 4.0], [-2.0, -1.0]], [[-9.0, 1.0], [9.0, 0.5]]):
        (left, right), (low, high), _ = view(np.array(far))
        assert left < min(x for x, _ in far) and right > max(x for x, _ in far)
        assert low < min(y for _, y in far) and high > max(y for _, y in far)


def test_labels_end_up_apart():
    tips = np.array([[0.0, 1.0], [0.0, 1.0], [0.01, 1.0], [1.0, 0.5]])
    labels = place_labels(tips, gap=0.1, avoid=np.array([[0.0, 1.0]]))
    distances = np.linalg.norm(labels[:, None] - labels[None], axis=-1) + np.eye(4)
    assert distances.min() > 0.09


def test_angles():
    assert angle_degrees(np.array([1.0, 0]), np.array([0, 2.0])) == pytest.approx(90)
    assert np.isnan(angle_degrees(np.zeros(2), np.ones(2)))
