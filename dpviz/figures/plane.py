"""From many dimensions to two: the plane in which gradients are drawn, and where their labels go. Numpy only."""

import numpy as np

TINY = 1e-300


class Plane:
    """A plane through the origin: up along `reference`, across it along the ranks' main spread; unit: its length.

    local: (k, n) one gradient a rank; reference: (n,) the whole batch's. The projection is linear, so the mean of the
    projected arrows is the projection of the mean, and the reference itself lies in the plane, at (0, 1).
    A reference of length zero leaves the unit at the longest local gradient.
    """

    def __init__(self, local: np.ndarray, reference: np.ndarray):
        length = float(np.linalg.norm(reference))
        longest = float(np.linalg.norm(local, axis=1).max(initial=0.0))
        self.unit = length if length > 0 else longest if longest > 0 else 1.0
        self.up = reference / length if length > 0 else np.zeros_like(reference)
        rest = local - np.outer(local @ self.up, self.up)
        self.across = self._main_direction(rest)
        total = float((rest**2).sum())
        floor = (1e-12 * self.unit) ** 2  # less is rounding, and its direction would be noise
        self.share = float(((rest @ self.across) ** 2).sum() / total) if total > floor else 1.0
        if total <= floor:
            self.across = np.zeros_like(reference)

    def _main_direction(self, rest: np.ndarray) -> np.ndarray:
        """The first principal direction of the residuals, at right angles to `up`; rank 0 comes to lie on the right."""
        apart = rest - rest.mean(0)
        direction = np.linalg.eigh(apart @ apart.T)[1][:, -1] @ apart  # k by k: n is thousands of times larger
        direction = direction / max(float(np.linalg.norm(direction)), TINY)
        first = rest @ direction
        first = first[np.abs(first) > 1e-9 * np.abs(first).max(initial=0.0)]
        return -direction if len(first) and first[0] < 0 else direction

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """(m, n) -> (m, 2): how far across and how far up, in units of the reference's length."""
        return np.stack([vectors @ self.across, vectors @ self.up], axis=-1) / self.unit


def angle_degrees(vector: np.ndarray, reference: np.ndarray) -> float:
    """The angle between two vectors in all their dimensions, 0 to 180; NaN where one has no length."""
    lengths = float(np.linalg.norm(vector) * np.linalg.norm(reference))
    if lengths == 0:
        return float("nan")
    return float(np.degrees(np.arccos(np.clip(vector @ reference / lengths, -1, 1))))


def view(points: np.ndarray, *, aspect: float = 1.6) -> tuple[list[float], list[float], float]:
    """The x range, y range and tick distance that hold `points` (m, 2), the origin and (0, 1), moving in steps.

    aspect: width over height of the frame in px. The smallest of the allowed views is taken, so a small change of the
    points does not move the axes.
    """
    frames = sorted(
        ((1.6 + low) * scale, low, scale)
        for scale in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256, 1024)
        for low in (0.35, 0.9, 1.6)
    )
    for height, low, scale in frames:
        half = height * aspect / 2
        inside = np.abs(points[:, 0]).max() <= 0.92 * half
        if inside and points[:, 1].max() <= 1.45 * scale and -points[:, 1].min() <= 0.8 * low * scale:
            break
    tick = 0.5 if height < 3.5 else 1.0 if height < 10 else 2.0 if height < 20 else float(round(height / 8))
    return [-half, half], [-low * scale, 1.6 * scale], tick


def place_labels(tips: np.ndarray, *, gap: float, avoid: np.ndarray, rounds: int = 60) -> np.ndarray:
    """(m, 2) positions for labels: `gap` beyond each tip, along its arrow, then pushed apart.

    In the end no label lies within `gap` of another, or of a point of `avoid` (j, 2), where there is room for that.
    """
    lengths = np.linalg.norm(tips, axis=1, keepdims=True)
    outward = np.where(lengths > 1e-9, tips / np.maximum(lengths, 1e-9), [[1.0, 0.0]])
    labels = tips + gap * outward
    labels[:, 0] += 1e-3 * gap * np.arange(len(labels))  # tips in one place part by their order
    for _ in range(rounds):
        between = labels[:, None] - np.vstack([labels, avoid])[None, :]
        distance = np.linalg.norm(between, axis=-1) + 10 * gap * np.eye(len(labels), len(labels) + len(avoid))
        lack = np.maximum(gap - distance, 0)
        if not lack.any():
            break
        labels = labels + 0.5 * (lack[..., None] * between / np.maximum(distance, 1e-6 * gap)[..., None]).sum(1)
    return labels
