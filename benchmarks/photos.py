"""Real photographs for benchmarks: crops of those that scikit-learn and matplotlib ship, as JPEGs of 500 x 375."""

from pathlib import Path

import numpy as np
from PIL import Image

SIZE = (500, 375)
CLASSES = 8


def write_photos(folder: Path, count: int) -> Path:
    """Write `count` different JPEGs as CLASS/NUMBER.jpg, about 60 kB each."""
    from matplotlib import cbook
    from sklearn.datasets import load_sample_images

    portrait = Image.open(cbook._get_data_path("sample_data", "grace_hopper.jpg")).convert("RGB")
    sources = [*(Image.fromarray(image) for image in load_sample_images().images), portrait]
    generator = np.random.default_rng(0)
    for number in range(count):
        source = sources[number % len(sources)]
        width = min(source.width, source.height * 4 / 3) * generator.uniform(0.75, 1)
        height = width * 3 / 4
        left, top = generator.uniform(0, source.width - width), generator.uniform(0, source.height - height)
        crop = source.resize(SIZE, Image.Resampling.BICUBIC, (left, top, left + width, top + height))
        path = folder / f"class{number % CLASSES}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        crop.save(path, quality=92)
    return folder
