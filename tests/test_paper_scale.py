"""The paper's setups at the paper's scale: what their budgets add up to, and two real updates of each on small data."""

import gc
import math
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image

from dietcl.config import RunConfig, preset
from dietcl.engine import learner as engine_learner
from dietcl.engine import loop
from dietcl.engine.curve import Curve
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.option_search import NullRecorder
from dietcl.engine.resume_position import StepPosition
from dietcl.methods.base import Phase
from dietcl.models.network import Network, build_network
from dietcl.models.timm_models import check_timm_name
from dietcl.run import stream_of
from dietcl.streams.sources.datasets.cglm import Cglm
from dietcl.streams.sources.datasets.cloc import LABELS, LOCATIONS, TIMES, VALIDATION, Cloc
from dietcl.streams.sources.datasets.imagenet import ImageNet10k, imagenet1k
from dietcl.streams.sources.registry import prepare
from dietcl.streams.stream import TimeStep
from helpers.photos import photo
from helpers.recording import paid, run_through, updates_of
from helpers.tiny import tiny_learner
from reproduction.datasets import manifest_of
from reproduction.study import Study
from reproduction.suites import DIETCL, Point

Row = tuple[int, str, int]  # class, path, time
Manifest = Callable[[str], Path]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the paper says of a setup, and what follows from it."""

    recipe: str
    label_rate: float
    updates: int
    """S, per time step."""
    threshold: int
    """B = 0.8 S."""
    passes: int
    """20 time steps of S updates of 1,024 images."""
    classes: int
    last: int
    """Classes of the last time step: what 19 of 20 equal parts leave."""


PAPER = {
    "imagenet10k": Published(
        recipe="class",
        label_rate=0.01,
        updates=500,
        threshold=400,
        passes=10_240_000,
        classes=9_459,
        last=472,
    ),
    "cloc": Published(
        recipe="time",
        label_rate=0.005,
        updates=1000,
        threshold=800,
        passes=20_480_000,
        classes=10_788,
        last=539,
    ),
    "cglm": Published(
        recipe="time",
        label_rate=0.05,
        updates=600,
        threshold=480,
        passes=12_288_000,
        classes=10_788,
        last=539,
    ),
}
DATASETS = pytest.mark.parametrize("name", PAPER)


# Miniature copies: as many classes as the paper has, with two images each, a test image, and 24 photos behind them all.


def photograph(root: Path) -> Path:
    """Write twelve folders of two photos."""
    for number in range(24):
        path = root / "photos" / f"{number // 2}" / f"{number % 2}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(number)).save(path, "JPEG")
    return root / "photos"


def imagenet10k(root: Path) -> Path:
    package = find_spec("timm")
    assert package is not None
    assert package.origin is not None
    listed = Path(package.origin).parent / "data" / "_info" / "imagenet21k_miil_w21_synsets.txt"
    names = sorted(set(listed.read_text().split()) - imagenet1k())
    photos, train, test = photograph(root), root / "imagenet21k_train", root / "imagenet21k_val"
    train.mkdir()
    for number, name in enumerate(names):
        (train / name).symlink_to(photos / f"{number % 12}")
    (test / names[0]).mkdir(parents=True)
    (test / names[0] / "0.jpg").symlink_to(photos / "0" / "0.jpg")
    return prepare(ImageNet10k(), str(root), root / "out", "none").manifest


def timed(root: Path, place: str) -> tuple[list[Row], list[Row]]:
    """Write the images of a stream in which every class has its own moment; returns its rows, and one for tests."""
    photos = photograph(root)
    (root / place).mkdir(parents=True)
    # All photos are in each of 899 folders, which makes 21,576 images, and in one more for tests.
    for number in range(900):
        (root / place / f"{number:03d}").symlink_to(photos)
    train = [(n // 2, f"{n // 24:03d}/{n // 2 % 12}/{n % 2}.jpg", 10 * (n // 2)) for n in range(21_576)]
    return train, [(0, "899/0/0.jpg", 0)]


def cloc(root: Path) -> Path:
    train, test = timed(root, "dataset/images")
    torch.save([f"{path}\n" for _, path, _ in train], root / LOCATIONS)
    torch.save([code for code, _, _ in train], root / LABELS)
    torch.save([time for _, _, time in train], root / TIMES)
    lines = [f"{code},2010-01-01 00:00:00.0,{time},17@N00,{path}\n" for code, path, time in test]
    (root / VALIDATION).write_text("".join(lines))
    return prepare(Cloc(), str(root), root / "out", "none").manifest


def cglm(root: Path) -> Path:
    for file, rows in zip(("train.txt", "test.txt"), timed(root, "train"), strict=True):
        (root / file).write_text("".join(f"{code}\t{path}\t{time}\n" for code, path, time in rows))
    return prepare(Cglm(), str(root), root / "out", "none").manifest


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The manifest of a setup's miniature copy, made when it is asked for."""
    makers = {"imagenet10k": imagenet10k, "cloc": cloc, "cglm": cglm}
    return cache(lambda name: makers[name](tmp_path_factory.mktemp(name)))


def configured(manifest: Manifest, name: str) -> RunConfig:
    """Return what a study of the setup would run, with a label in every class: two images are too few for its rate."""
    config = Study(name, Path("out")).cell(DIETCL, Point(), 0).config
    recipe = replace(config.recipe, at_least_one=True)
    return replace(config, stream=str(manifest_of(name, manifest(name))), recipe=recipe)


# What is planned.


@DATASETS
def test_a_setup_is_that_of_the_paper(manifest: Manifest, name: str, tmp_path: Path) -> None:
    paper = PAPER[name]
    cell = Study(name, tmp_path).cell(DIETCL, Point(), 0)
    config = cell.config
    assert (
        cell.key == f"dietcl as dietcl/S {paper.updates}/B {paper.updates * 4 // 5}/rate {paper.label_rate}/T 20/seed 0"
    )
    assert (config.recipe.recipe, config.recipe.label_rate) == (paper.recipe, paper.label_rate)
    assert (config.recipe.time_steps, config.first_time_steps) == (20, None)
    assert (config.budget, config.method_config.threshold) == (f"{paper.updates}", f"{paper.threshold}")
    assert (config.method_config.alpha, config.accounting) == (50, "images")
    assert (config.training.batch, config.training.micro_batch) == (1024, 256)
    assert (config.evaluation.test_images, config.augmentation.flip) == (None, True)
    assert config.model.encoder == config.weights == "vit_base_patch16_224.mae"
    check_timm_name(config.weights)
    network = build_network(config.model, 0, "meta")
    encoder = network.encoder
    assert (encoder.depth, encoder.dim, encoder.patch, encoder.grid) == (12, 768, 16, 14)
    assert network.kept_patches == 49  # a quarter of 14 x 14
    # ViT-B is published with a head of 1,000 rows.
    assert sum(value.numel() for value in encoder.parameters()) == 86_567_656 - 1000 * 769
    stream, _ = stream_of(configured(manifest, name))
    assert len(stream.steps) == 20
    assert (stream.steps[-1].seen_classes, len(stream.steps[-1].new_classes)) == (paper.classes, paper.last)


@DATASETS
def test_twenty_time_steps_plan_exactly_the_passes_of_the_paper(
    manifest: Manifest, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper, planned = PAPER[name], []

    def weightless(config: RunConfig) -> tuple[Network, str]:
        return build_network(config.model, config.seed, "meta"), ""

    def booked(learner: Learner, step: TimeStep, here: StepPosition, phase: Phase, curve: Curve) -> Iterator[None]:
        """Book every update that the phase affords, and make none."""
        allotment, batch = learner.ledger.allot(phase.share, phase.updates), learner.config.training.batch
        while learner.ledger.affords(batch, within=allotment):
            learner.ledger.charge("planned", "train", batch)
            here.updates += 1
            yield
        planned.append((step.t, phase.name, allotment.passes))

    monkeypatch.setattr(engine_learner, "starting_network", weightless)
    monkeypatch.setattr(loop, "run_phase", booked)
    stream, index = stream_of(config := configured(manifest, name))
    learner = assemble(config, stream, Equipment(index, torch.device("meta")), NullRecorder())
    monkeypatch.setattr(learner.evaluator, "measure", lambda *of, **options: None)
    run_through(learner)
    receipts = learner.ledger.closed
    assert [receipt.budget for receipt in receipts] == [1024 * paper.updates] * 20
    assert sum(receipt.budget for receipt in receipts) == paper.passes
    assert [(receipt.spent, receipt.unused) for receipt in receipts] == [(1024 * paper.updates, 0)] * 20
    assert sum(item.images for receipt in receipts for item in receipt.items) == paper.passes
    assert receipts[-1].classes == paper.classes == learner.network.head.classes
    joint, balance = 1024 * paper.threshold, 1024 * (paper.updates - paper.threshold)
    later = [(t, *phase) for t in range(2, 21) for phase in (("joint", joint), ("balance", balance))]
    assert planned == [(1, "joint", joint + balance), *later]


# What is done.


@pytest.fixture(scope="module")
def vit_base() -> Network:
    """The network of all three setups with random weights, drawn once, which takes as long as an update."""
    return build_network(preset("base").model, 0)


@pytest.fixture
def learner_of(vit_base: Network, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Learner]:
    """Learners before a time step of two updates, of an image for each pool that they draw from; B stays 0.8 S."""

    def of(config: RunConfig, batch: int, t: int) -> Learner:
        assert config.model == vit_base.config
        training = replace(config.training, batch=batch, micro_batch=batch)
        own = replace(config.method_config, threshold="1.6")
        config = replace(config, budget="2", training=training, method_config=own, first_time_steps=t)
        learner = tiny_learner(config, *stream_of(config))
        learner.position.finished = t - 1
        for step in learner.stream.steps[: t - 1]:
            learner.network.head.grow(step.seen_classes, torch.Generator().manual_seed(step.t))
        return learner

    gc.collect()  # the network of an earlier learner, which refers to itself
    monkeypatch.setattr(engine_learner, "starting_network", lambda config: (deepcopy(vit_base), "random weights"))
    return of


def some_weights(learner: Learner) -> dict[str, torch.Tensor]:
    """Return the first thousand numbers of every tensor; a head that grows keeps them."""
    return {name: value.flatten()[:1000].clone() for name, value in learner.network.state_dict().items()}


def unmoved(learner: Learner, before: dict[str, torch.Tensor]) -> set[str]:
    """Return the names of the tensors that are what they were."""
    return {name for name, value in some_weights(learner).items() if torch.equal(value, before[name])}


def spending(learner: Learner) -> dict[str, tuple[int, float]]:
    """Return images and passes of the time step by purpose, which together are all that it spent."""
    (receipt,) = learner.ledger.closed
    assert receipt.classes == learner.network.head.classes
    assert receipt.spent == receipt.budget == sum(item.passes for item in receipt.items)
    return {purpose: (item.images, item.passes) for (purpose, _), item in paid(receipt).items()}


@pytest.mark.long
@pytest.mark.parametrize("name", ["imagenet10k", "cglm"])
def test_dietcl_makes_two_updates_in_the_last_time_step(
    manifest: Manifest, learner_of: Callable[..., Learner], name: str
) -> None:
    paper = PAPER[name]
    learner = learner_of(configured(manifest, name), batch=3, t=20)
    assert learner.network.head.classes == paper.classes - paper.last
    before = some_weights(learner)
    first, second = updates_of(learner)
    assert learner.network.head.weight.shape == (paper.classes, 768)
    assert unmoved(learner, before) == {"decoder.pos_embed"}  # a table that is not learned
    # A second joint update would exceed 0.8 of two, so it goes to the memory, at a tenth of the rate.
    assert (first["phase"], first["lr"]) == ("joint", pytest.approx(4e-4))
    assert (second["phase"], second["lr"]) == ("balance", pytest.approx(4e-5))
    assert spending(learner) == {"labeled": (1, 1), "memory": (1 + 3, 4), "reconstruct": (1, 1)}
    # What knows nothing guesses among the classes of this time step, or among all.
    losses = {"masked": math.log(paper.last), "memory": math.log(paper.classes), "reconstruct": 1.5}
    assert first["loss"] == pytest.approx(losses, abs=1.4)
    assert second["loss"] == pytest.approx({"memory": math.log(paper.classes)}, abs=1.4)
    assert learner.counts.count.sum() == learner.counts.count[19].sum() == 1
    assert math.isfinite(learner.counts.loss_sum.sum())


@pytest.mark.long
def test_dietcl_makes_two_updates_in_the_first_time_step(
    manifest: Manifest, learner_of: Callable[..., Learner]
) -> None:
    learner = learner_of(configured(manifest, "cloc"), batch=2, t=1)
    before = some_weights(learner)
    first, second = updates_of(learner)
    assert learner.network.head.weight.shape == (540, 768)  # 1,079 of 21,576 images, and the other one of a moment
    assert unmoved(learner, before) == {"decoder.pos_embed"}
    # Both are joint. After half of the budget the cosine is halfway between the peak and the floor of 5e-5.
    assert (first["phase"], first["lr"]) == ("joint", pytest.approx(4e-4))
    assert (second["phase"], second["lr"]) == ("joint", pytest.approx(2.25e-4))
    assert spending(learner) == {"labeled": (2, 2), "reconstruct": (2, 2)}
    assert first["loss"] == pytest.approx({"masked": math.log(540), "reconstruct": 1.5}, abs=1.4)
    assert all(map(math.isfinite, second["loss"].values()))
    assert learner.counts.count.tolist() == [[1]]
