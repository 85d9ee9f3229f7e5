"""The figures of suites: what stands at which height is worked out by hand, and nothing is cut off or hidden."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from dietcl.metrics import summarize
from dietcl.report.style import PALETTE
from reproduction.run_cache import Result
from reproduction.show.figure_data import FigureData
from reproduction.show.figures import draw
from reproduction.show.plot_style import apart, is_dietcl, style_of
from reproduction.show.scale import Scale
from reproduction.study import Measured
from reproduction.suites import (
    CASSLE,
    DIETCL,
    ER,
    ER_UNIFORM,
    FROZEN,
    JOINT_ONLY,
    SUITES,
    TWO_STAGE,
    UPPER_BOUND,
    Point,
)

SCALE = Scale(updates=0.1, label_rate=2.0, time_steps=1.0, batch=64)


def run(*rows, **facts):
    """Return what a run measured: percent after each time step, on ever more test images, None on none."""
    size = len(rows)
    count, correct = np.zeros((size, size), int), np.zeros((size, size), int)
    for t, row in enumerate(rows):
        for k, value in enumerate(row):
            if value is not None:
                count[t, k], correct[t, k] = 1000 * (k + 1), 10 * value * (k + 1)
    return Result("", 0, summarize(correct, count, np.zeros((size, size))), facts)


def level(value, size=2, **facts):
    """Return a run that has the same accuracy everywhere."""
    return run(*([value] * (t + 1) for t in range(size)), **facts)


def measured(arm, *results, **point):
    return Measured(arm, Point(**point), results)


def drawn(name, items, scale=SCALE):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return draw(SUITES[name], items, scale, "Stream: title")


def lines(axes):
    """Return the named lines of axes as their points."""
    return {line.get_label(): line.get_xydata().tolist() for line in axes.lines if line.get_label()[0] != "_"}


def heights(axes):
    return {name: [y for _, y in points] for name, points in lines(axes).items()}


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def small_print(figure):
    return " ".join(figure.get_supxlabel().split())


# What is drawn.


def test_table_sorts_within_groups_and_shows_means():
    items = [
        measured(UPPER_BOUND, run([None], [80, 80])),
        measured(ER, run([90], [20, 40]), level(40), level(50)),
        measured(ER_UNIFORM, level(50), level(60)),
        measured(DIETCL, level(20), level(30)),
        measured(CASSLE, level(70)),
        measured(FROZEN, level(10)),
    ]
    figure = drawn("table1", items)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("Reference", UPPER_BOUND.title),
        *("Supervised", ER_UNIFORM.title, ER.title),
        *("Frozen encoder", FROZEN.title),
        *("Semi-supervised", CASSLE.title, DIETCL.title),
    ]
    assert lines(axes)[ER_UNIFORM.title] == [[pytest.approx(55), 3]]
    assert lines(axes)[ER.title] == [[pytest.approx(40), 4]]
    assert texts(axes) == ["A(T) in %", "80.0", "55.0 ± 7.1", "40.0 ± 10.0", "10.0", "70.0", "25.0 ± 7.1"]
    bars = [path.vertices[:, 0].tolist() for bar in axes.collections for path in bar.get_paths()]
    assert pytest.approx([30, 50]) in bars
    seeds = [line.get_xdata().tolist() for line in axes.lines if line.get_label() == "_seed"]
    assert pytest.approx([30, 40, 50]) in seeds
    assert small_print(figure).startswith("50 updates per time step (paper: 500), 2 % labels (paper: 1 %); 1 seed (2: ")
    assert "bars: one standard deviation" in small_print(figure)


def test_table_leaves_the_parts_of_dietcl_in_their_order():
    arms = SUITES["ablation"].arms
    figure = drawn("ablation", [measured(arm, level(10 + place % 2)) for place, arm in enumerate(arms)])
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [arm.title for arm in arms]
    assert "bars" not in small_print(figure)  # a single seed has none


def test_curves_have_dietcl_and_the_reference_in_both_panels():
    items = [
        measured(UPPER_BOUND, run([None], [None, None], [60, 60, 60])),
        measured(ER, run([50], [40, 60], [30, 20, 40])),
        measured(FROZEN, level(20, 3)),
        measured(CASSLE, level(10, 3)),
        measured(DIETCL, run([90], [60, 80], [30, 60, 90]), run([70], [40, 60], [20, 50, 80])),
    ]
    figure = drawn("curves", items)
    left, right = map(heights, figure.axes)
    assert list(left) == [ER.title, FROZEN.title, UPPER_BOUND.title, DIETCL.title]
    assert list(right) == [CASSLE.title, DIETCL.title, UPPER_BOUND.title]
    assert left[ER.title] == pytest.approx([50, 50, 30])
    assert left[DIETCL.title] == right[DIETCL.title] == pytest.approx([80, 60, 55])
    assert left[UPPER_BOUND.title] == pytest.approx([60, 60])
    assert [text.strip("\u2007") for text in texts(figure.axes[0])] == [
        *(f"20.0  {FROZEN.title}", f"30.0  {ER.title}", f"55.0  {DIETCL.title}", f"60.0  {UPPER_BOUND.title}")
    ]


def test_a_time_step_without_test_images_is_no_gap_and_no_zero():
    holes = run([None], [None, 40], [None, 20, 40])
    figure = drawn("curves", [measured(DIETCL, holes, run([None], [None, 60], [None, 40, 60]))])
    assert lines(figure.axes[0])[DIETCL.title] == [[2, pytest.approx(50)], [3, pytest.approx(40)]]
    figure = drawn("balance-phase", [measured(DIETCL, run([20], [20, None], [20, None, 60]))])
    ((label, points),) = lines(figure.axes[0]).items()
    assert points == [[1, pytest.approx(20)], [3, pytest.approx(60)]]
    assert label == "DietCL (sd 20.0)"  # less the chance of thousands of test images


def test_lines_say_this_budget_and_the_papers():
    items = [measured(ER, level(10 * k), level(10 * k + 4), updates=updates) for k, updates in ((1, 100), (3, 500))]
    items += [measured(DIETCL, run([70], [40, 60]), updates=updates) for updates in (100, 500)]
    figure = drawn("budget", items)
    axes, mean = figure.axes
    assert heights(axes) == {ER.title: pytest.approx([12, 32]), DIETCL.title: pytest.approx([50, 50])}
    assert heights(mean) == {ER.title: pytest.approx([12, 32]), DIETCL.title: pytest.approx([60, 60])}
    titles = ["After the last time step, A(T)", "Mean along the stream, A"]
    assert [panel.get_title("left") for panel in figure.axes] == titles
    assert axes.get_xscale() == "log"
    assert [x for x, _ in lines(axes)[ER.title]] == pytest.approx([10, 50], rel=0.02)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10\n(100)", "50\n(500)"]
    assert axes.get_xlabel() == "Updates per time step (in brackets: the paper's)"
    paper = drawn("budget", items, Scale(updates=1.0, label_rate=1.0, time_steps=1.0, batch=1024)).axes[0]
    assert [label.get_text() for label in paper.get_xticklabels()] == ["100", "500"]
    assert paper.get_xlabel() == "Updates per time step"


@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("label-rate", ["1 % labels (paper: 0.5 %)", "2 % labels (paper: 1 %)"]),
        ("budget-curves", ["10 updates (paper: 100)", "50 updates (paper: 500)"]),
        ("stream-length", ["10 time steps\n100 updates (paper: 1,000)", "20 time steps\n50 updates (paper: 500)"]),
    ],
)
def test_panels_say_in_what_they_differ(name, titles):
    suite = SUITES[name]
    items = [
        Measured(arm, point, (level(20 + 10 * k), level(30 + 10 * k)))
        for arm in suite.arms
        for k, point in enumerate(suite.points)
    ]
    figure = drawn(name, items)
    assert [axes.get_title("left") for axes in figure.axes[:2]] == titles
    assert [list(lines(axes)) for axes in figure.axes] == [[arm.title for arm in suite.arms]] * len(suite.points)
    assert [texts(axes)[0] for axes in figure.axes] == ["A = 25.0 %", "A = 35.0 %", "A = 45.0 %", "A = 55.0 %"]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_the_best_threshold_after_each_time_step_is_marked():
    accuracies = {300: (10, 60, 10), 400: (50, 20, 20), 450: (30, 40, 40)}
    items = []
    for threshold, (second, third, fourth) in accuracies.items():
        rows = ([99], [second] * 2, [third] * 3, [fourth] * 4)
        items.append(measured(DIETCL, run(*rows), run(*rows), threshold=threshold, first_time_steps=4))
    (axes,) = drawn("threshold", items).axes
    assert heights(axes) == {
        f"after time step {t}": pytest.approx([accuracies[b][t - 2] for b in accuracies]) for t in (2, 3, 4)
    }
    rings = [line for line in axes.lines if line.get_label().startswith("_best")]
    assert [ring.get_ydata()[0] for ring in rings] == pytest.approx([50, 60, 40])
    assert [round(ring.get_xdata()[0]) for ring in rings] == [40, 30, 45]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["30\n(300)", "40\n(400)", "45\n(450)"]


def test_gap_averages_seeds_by_their_share_of_the_updates():
    def events(updates, rise):
        return [
            {"t": t, "update": u, "loss": [None, 0.0, 2.0], "accuracy": [0.5, 0.0, rise * u / updates]}
            for t in (2, 3)
            for u in range(0, updates + 1, updates // 2)
        ]

    rows = ([50], [50, None], [50, None, 50])
    items = [
        measured(ER, run(*rows, curve=events(4, 0.2)), run(*rows, curve=events(10, 0.4))),
        measured(DIETCL, run(*rows, curve=[event for event in events(4, 0.8) if event["update"] != 2])),
    ]
    figure = drawn("stability-gap", items)
    loss, _, first, second = map(lines, figure.axes)
    assert list(first) == ["time step 1", "time step 3 (new)"]  # the second has no test images
    assert first["time step 3 (new)"] == [pytest.approx(point) for point in ([0, 0], [50, 15], [100, 30])]
    assert second["time step 3 (new)"] == [pytest.approx(point) for point in ([0, 0], [100, 80])]
    assert {name: {y for _, y in points} for name, points in loss.items()} == {"time step 3 (new)": {2.0}}
    assert [axes.get_title("left") for axes in figure.axes[:2]] == [ER.title, DIETCL.title]


def test_gap_interpolates_seeds_that_were_measured_elsewhere():
    def curve(*updates):
        return [{"t": 3, "update": u, "loss": [1.0] * 3, "accuracy": [u / 4] * 3} for u in updates]

    item = measured(ER, level(50, 3, curve=curve(0, 4)), level(50, 3, curve=curve(0, 1, 4)))
    accuracy = lines(drawn("stability-gap", [item]).axes[1])["time step 1"]
    assert accuracy == [pytest.approx(point) for point in ([0, 0], [25, 25], [100, 100])]


def test_stages_show_new_classes_and_all():
    items = [measured(ER_UNIFORM, run([60], [20, 80])), measured(TWO_STAGE, run([40], [20, 50]), run([50], [40, 70]))]
    new, seen = map(heights, drawn("two-stage", items).axes)
    assert new == {ER_UNIFORM.title: pytest.approx([60, 80]), TWO_STAGE.title: pytest.approx([45, 60])}
    assert seen == {ER_UNIFORM.title: pytest.approx([60, 50]), TWO_STAGE.title: pytest.approx([45, 45])}


def test_origins_tell_how_uneven_a_seed_is():
    even, uneven = run([30], [30, 30]), run([30], [20, 40])
    items = [measured(JOINT_ONLY, uneven, run([30], [40, 20])), measured(DIETCL, even, uneven)]
    (axes,) = drawn("balance-phase", items).axes
    # By hand: 10 points, less the chance of 1,000 and 2,000 test images: sqrt(100 - 1.4) and sqrt(100 - 1.6).
    assert heights(axes) == {
        f"{JOINT_ONLY.title} (sd 9.9)": pytest.approx([30, 30]),
        "DietCL (sd 5.0)": pytest.approx([25, 35]),
    }


def test_spending_stacks_purposes_without_evaluation():
    def spent(**flops):
        return level(50, flops={"evaluation": 0.0, **flops})

    items = [
        measured(ER, spent(memory=4e12), spent(memory=6e12)),
        measured(DIETCL, spent(memory=2e12, reconstruct=1e12)),
        measured(DIETCL, spent(memory=3e12, reconstruct=2e12, solve=3e10, head=1e10), accounting="flops"),
    ]
    (axes,) = drawn("cost", items).axes
    assert {bars.get_label(): [bar.get_width() for bar in bars] for bars in axes.containers} == {
        "remembered labels": pytest.approx([5, 2, 3]),
        "masked images": pytest.approx([0, 1, 2]),
        "other": pytest.approx([0, 0, 0.04]),  # neither is a hundredth of the longest bar
    }
    assert [bar.get_x() for bar in axes.containers[1]] == pytest.approx([5, 2, 3])
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        *("ER balanced, at equal images", "DietCL, at equal images", "DietCL, at equal FLOPs")
    ]
    assert texts(axes)[:4] == ["TFLOPs", "5", "3", "5.04"]


def test_heads_link_the_own_to_the_solved_one():
    uneven = {"rows": ([50], [20, 40])}
    items = [
        measured(ER, run(*uneven["rows"], ridge=0.5), run(*uneven["rows"], ridge=0.6)),
        measured(DIETCL, level(70, ridge=0.8)),
        measured(FROZEN, level(10, ridge=0.12)),
    ]
    (axes,) = drawn("solved-heads", items).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [DIETCL.title, ER.title, FROZEN.title]
    links = [line.get_xdata() for line in axes.lines if line.get_label() == "_link"]
    assert links[:2] == [pytest.approx([70, 80]), pytest.approx([100 / 3, 55])]
    assert texts(axes) == ["own", "70.0", "33.3 ± 0.0", "10.0", "solved", "80.0", "55.0 ± 7.1", "12.0"]


# How it looks.


def test_every_suite_fits_its_figure():
    facts = {"ridge": 0.5, "flops": {"memory": 2e12, "labeled": 1e12}}
    facts["curve"] = [{"t": 3, "update": u, "loss": [2, 2.1, 1], "accuracy": [0.4, 0.41, 0.6]} for u in (0, 1, 2)]
    for name, suite in SUITES.items():
        items = [
            Measured(arm, point, tuple(level(40 + place / 5 + seed, 4, **facts) for seed in range(2)))
            for place, arm in enumerate(suite.arms)
            for point in suite.points
        ]
        figure = drawn(name, [replace(item, results=item.results[: 1 + is_dietcl(item.arm)]) for item in items])
        figure.draw_without_rendering()
        canvas = figure.bbox
        for axes in figure.axes:
            boxes = [text.get_window_extent() for text in axes.texts if text.get_text()]
            for box in [*boxes, axes.get_tightbbox(), figure._supxlabel.get_window_extent()]:
                assert canvas.x0 <= box.x0, name
                assert box.x1 <= canvas.x1, name
                assert canvas.y0 <= box.y0, name
                assert box.y1 <= canvas.y1, name
            hidden = [
                (a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.shrunk(1, 0.7).overlaps(b.shrunk(1, 0.7))
            ]
            assert not hidden, name


def test_only_dietcl_is_blue_and_lines_of_a_figure_differ():
    for suite in SUITES.values():
        looks = [style_of(arm) for arm in suite.arms]
        assert [look["color"] == PALETTE[0] for look in looks] == [is_dietcl(arm) for arm in suite.arms]
        assert len({(look["color"], str(look["ls"])) for look in looks}) == len(looks)
        if len(looks) <= len(PALETTE) and suite.view not in ("table", "heads"):  # whose rows have names
            assert len({look["color"] for look in looks}) == len(looks)


def test_labels_move_apart_no_further_than_they_must():
    assert apart(np.array([0.1, 0.5, 0.9]), 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert apart(np.array([0.5, 0.5]), 0.1) == pytest.approx([0.45, 0.55])
    assert apart(np.array([0.0, 0.0, 1.0]), 0.1) == pytest.approx([0.0, 0.1, 1.0])
    assert apart(np.array([0.98, 0.99, 1.0]), 0.1) == pytest.approx([0.8, 0.9, 1.0])


def test_small_print_says_that_points_differ_in_their_seeds():
    few, many = Point(updates=100), Point()
    measured = tuple(
        Measured(arm, point, (run([50]),) * seeds)
        for arm, point, seeds in ((ER, few, 3), (ER, many, 5), (DIETCL, few, 3), (DIETCL, many, 5), (CASSLE, many, 3))
    )
    assert "; 3 to 5 seeds (3: CaSSLe); bars" in FigureData(measured, SCALE, "").small("bars")
    assert "; 1 seed." in FigureData((Measured(ER, many, (run([50]),)),), SCALE, "").small("bars")
