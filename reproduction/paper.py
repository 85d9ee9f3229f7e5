"""The paper's own numbers, in percent, where its text gives them (Zhang et al., ICLR 2024)."""

from reproduction.suites import PAPER_RATE, PAPER_TIME_STEPS, Point

# Table 1: A(T) and A on ImageNet10k, CLOC and CGLM.
STREAMS = ("ImageNet10k", "CLOC", "CGLM")
TABLE1: dict[str, tuple[tuple[float | None, float | None], ...]] = {
    "Upper bound (joint)": ((18.23, None), (8.56, None), (38.15, None)),
    "EWC": ((2.19, 7.69), (1.83, 2.28), (6.16, 9.28)),
    "MAS": ((6.73, 11.81), (1.65, 2.03), (1.73, 3.47)),
    "ER balanced": ((14.89, 22.84), (4.64, 4.59), (22.81, 19.40)),
    "ER uniform": ((12.73, None), (None, None), (None, None)),  # Table 5
    "GDumb": ((4.64, 16.25), (3.15, 3.3), (8.81, 10.11)),
    "ER-ACE": ((10.72, 21.28), (4.57, 4.53), (21.55, 19.28)),
    "L2P": ((6.30, 10.23), (2.68, 2.43), (16.69, 13.57)),
    "DualNet": ((0.50, 0.92), (0.80, 0.83), (5.20, 3.97)),
    "CaSSLe": ((5.78, 13.25), (1.52, 1.60), (7.10, 6.67)),
    "CCIC": ((0.20, 0.62), (1.32, 0.72), (4.27, 4.02)),
    "DietCL": ((16.82, 24.90), (5.63, 4.98), (24.34, 20.26)),
}

# A(T) on ImageNet10k, by suite and arm: tables 2, 5 and 7. The right half of table 7 ticks the masked loss in the row
# of 15.24, whose text says that it is without.
FINAL: dict[str, dict[str, float]] = {
    "ablation": {
        "ER balanced": 14.97,
        "Replay + masked loss": 15.83,
        "Replay + masked loss + balanced memory": 15.96,
        "All: DietCL": 16.82,
    },
    "ablation-orders": {
        "ER balanced": 14.97,
        "Replay + balanced memory": 15.01,
        "Replay + masked loss + balanced memory": 15.96,
        "Replay + balanced memory + reconstruction": 15.24,
        "All: DietCL": 16.82,
    },
    "sampling": {"ER uniform": 12.73, "ER balanced": 14.97},
}

# Figure 6: DietCL's A by the number of time steps.
LENGTHS: dict[int, float] = {10: 24.4, 20: 24.9, 50: 23.7, 100: 22.2}

# Table 6: accuracy after time steps 2, 3 and 4 by threshold.
THRESHOLDS: dict[int, tuple[float, float, float]] = {
    300: (32.44, 29.30, 26.81),
    350: (32.7, 29.75, 27.10),
    400: (32.91, 29.80, 27.44),
    450: (32.75, 30.02, 27.09),
}

# The images of an update, and of a time step of ImageNet10k at 1 % labels in 20 time steps (appendix B.1).
BATCH = 1024
LABELED, UNLABELED = 5_000, 500_000


def passes(point: Point) -> tuple[float, float, float]:
    """Return the passes of a time step over its labels, over all labels up to the last one, and over its images."""
    spent = point.updates * BATCH
    share = PAPER_TIME_STEPS / point.time_steps
    labels = LABELED * point.label_rate / PAPER_RATE * share
    time_steps = point.first_time_steps or point.time_steps
    return spent / labels, spent / (labels * time_steps), spent / ((LABELED + UNLABELED) * share)


def at(suite: str, arm: str, point: Point, measure: str) -> float | None:
    """Return the paper's "A(T)" or "A" on ImageNet10k at a point, where its text gives it."""
    if suite == "stream-length" and (arm, measure) == ("DietCL", "A"):
        return LENGTHS.get(point.time_steps)
    if point == Point() and arm in TABLE1:
        final, average = TABLE1[arm][0]
        return final if measure == "A(T)" else average
    return None
