"""A tiny stream of colored blobs that a small network can tell apart, for tests of what lies above the data."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from dietcl.config import Evaluation, RunConfig, Training
from dietcl.engine.learner import Equipment, Learner, assemble
from dietcl.engine.option_search import NullRecorder
from dietcl.methods import method_config
from dietcl.models.presets import ModelConfig
from dietcl.streams.index import Index, open_manifest
from dietcl.streams.manifest import write_manifest
from dietcl.streams.options import Augmentation, Recipe
from dietcl.streams.stream import Stream, build_stream

# Modules that would dwarf so small an encoder.
TINY: dict[str, dict[str, object]] = {
    "cassle": {"width": 16},
    "dualnet": {"width": 16},
    "ranpac": {"random_features": 60},
}
# Budgets that buy every kind of update of methods whose images are dear (others: 2).
AMPLE = {"ccic": "12", "cassle": "9", "dualnet": "14", "fixmatch": "3", "l2p": "3", "lwf": "3"}
MODEL = ModelConfig(encoder="micro", image_size=16, decoder_dim=16, decoder_depth=1, decoder_heads=2)


def write_blobs(folder: Path, classes: int = 6, per_class: int = 20, test_per_class: int = 4, size: int = 16) -> Path:
    """Write a pack and a manifest: each class is a color and a place, with noise; time runs with the row."""
    generator = np.random.default_rng(0)
    count = classes * (per_class + test_per_class)
    label = np.arange(count) % classes
    images = generator.integers(0, 90, (count, size, size, 3))
    for i, code in enumerate(label):
        place = (3 * code) % (size - 5)
        images[i, place : place + 5, place : place + 5] = 80 + 40 * np.array([code % 2, code // 2 % 2, code // 4 % 2])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "images.npy", images.astype(np.uint8))
    split = np.where(np.arange(count) < classes * per_class, "train", "test")
    return write_manifest(
        folder / "manifest.parquet",
        {
            "id": [f"blob{i}" for i in range(count)],
            "file": ["images.npy"] * count,
            "offset": np.arange(count),
            "label": [f"class {code}" for code in label],
            "time": np.where(split == "train", np.arange(count), np.arange(count) - classes * per_class).astype(float),
            "split": split,
        },
    )


def tiny_config(
    manifest: Path, method: str = "dietcl", *, budget: str = "3", seed: int = 0, **options: object
) -> RunConfig:
    """Return a configuration that learns the blobs in seconds; options go to the method."""
    return RunConfig(
        method=method,
        method_config=replace(method_config(method), **{**TINY.get(method, {}), **options}),  # type: ignore[arg-type]
        stream=str(manifest),
        source=None,
        recipe=Recipe(recipe="class", time_steps=3, label_rate=0.2),
        model=MODEL,
        weights=None,
        training=Training(batch=12, micro_batch=6, lr=1e-3, head_lr=1e-2, lr_floor=1e-4),
        augmentation=Augmentation(crop=0.5),
        budget=budget,
        evaluation=Evaluation(),
        seed=seed,
    )


def tiny_learner(config: RunConfig, stream: Stream | None = None, index: Index | None = None) -> Learner:
    """Assemble a learner on the CPU that takes no notes."""
    index = index or open_manifest(Path(config.stream))
    stream = stream or build_stream(config.stream, index, config.recipe, config.seed)
    return assemble(config, stream, Equipment(index), NullRecorder())
