"""Augmentation: batched, on the device, keyed like the sampler."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from dietcl.rng import numpy_generator, torch_generator
from dietcl.streams.batch import Batch, Part
from dietcl.streams.lazy_images import LazyImages
from dietcl.streams.loader import Images, Pictures
from dietcl.streams.normalize import normalize
from dietcl.streams.options import STD, Augmentation, PoolName
from dietcl.streams.sampler import Draw, Draws, Key


def crop_and_flip(images: Images, config: Augmentation, key: Key) -> torch.Tensor:
    """Return normalized random resized crops, mirrored at random."""
    if isinstance(images, Pictures):
        return normalize(images.crops(config, key))
    images = normalize(images)
    generator = torch_generator(images.device, *key, "crop")
    random = torch.rand((5, len(images)), generator=generator, device=images.device)
    if config.crop < 1:
        area = config.crop + (1 - config.crop) * random[0]
        # From 3:4 to 4:3, as far as a crop of this area fits into the image.
        aspect = torch.clamp((3 / 4) ** (1 - 2 * random[1]), area, 1 / area)
        width, height = (area * aspect).sqrt(), (area / aspect).sqrt()
        theta = torch.zeros((len(images), 2, 3), device=images.device)
        theta[:, 0, 0], theta[:, 1, 1] = width, height
        theta[:, 0, 2] = (1 - width) * (2 * random[2] - 1)
        theta[:, 1, 2] = (1 - height) * (2 * random[3] - 1)
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        images = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
    if config.flip:
        images = torch.where((random[4] < 0.5)[:, None, None, None], images.flip(-1), images)
    return images


def distort(images: torch.Tensor, key: Key) -> torch.Tensor:
    """Return normalized images with brightness, contrast and saturation changed and a square cut out of each."""
    generator = torch_generator(images.device, *key, "distort")
    random = torch.rand((5, len(images), 1, 1, 1), generator=generator, device=images.device)
    contrast, saturation = 0.6 + 0.8 * random[0], 0.6 + 0.8 * random[1]
    brightness = (random[2] - 0.5) * 0.4 / STD
    grey, level = images.mean(1, keepdim=True), images.mean((1, 2, 3), keepdim=True)
    images = (grey + saturation * (images - grey) - level) * contrast + level + brightness
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    half = 0.25 * images.shape[-1]
    y, x = (random[3 + axis] * images.shape[-2 + axis] for axis in (0, 1))
    hidden = ((rows[:, None] - y).abs() <= half) & ((columns - x).abs() <= half)
    return images.masked_fill(hidden, 0.0)  # zero is mid-grey


def mix(part: Part, config: Augmentation, key: Key) -> Part:
    """Mix every image of a labeled part with its partner from the same part, by mixup or cutmix."""
    assert part.labels is not None
    generator = numpy_generator(*key, "mix")
    cut = config.cutmix > 0 and (config.mixup <= 0 or generator.random() < 0.5)
    parameter = config.cutmix if cut else config.mixup
    images, weight = part.images, 1.0
    if parameter > 0:
        weight = generator.beta(parameter, parameter)
        partners = images.flip(0)
        if cut:
            height, width = images.shape[-2:]
            side = (1 - weight) ** 0.5
            y, x = int(generator.integers(height)), int(generator.integers(width))
            half_h, half_w = int(height * side / 2), int(width * side / 2)
            top, bottom = max(0, y - half_h), min(height, y + half_h)
            left, right = max(0, x - half_w), min(width, x + half_w)
            images = images.clone()
            images[:, :, top:bottom, left:right] = partners[:, :, top:bottom, left:right]
            weight = 1 - (bottom - top) * (right - left) / (height * width)
        else:
            images = images * weight + partners * (1 - weight)
    weights = torch.full((len(images),), weight, device=images.device)
    return replace(part, images=images, partners=part.labels.flip(0), weight=weights, smoothing=config.smoothing)


def make_batch(
    draws: Draws, images: list[Images], classes: torch.Tensor, config: Augmentation | None, key: Key
) -> Batch:
    """Turn the drawn images of one micro-batch into augmented parts, or into plain ones."""
    parts: dict[PoolName, Part] = {}
    for draw, raw in zip(draws, images, strict=True):
        if config is None:
            parts[draw.pool] = plain_part(draw, raw)
            continue
        own = (*key, draw.pool)
        part = replace(_part(draw, crop_and_flip(raw, config, own)), view_maker=partial(_view, raw, config, own))
        parts[draw.pool] = part if draw.labels is None else mix(part, config, own)
    return Batch(**parts, classes=classes, key=key)


def plain_part(draw: Draw, raw: Images) -> Part:
    """Turn drawn images into a part as they are, neither cropped nor mixed."""
    return _part(draw, plain_images(raw.squares() if isinstance(raw, Pictures) else raw))


def plain_images(raw: torch.Tensor) -> torch.Tensor:
    """Return uint8 squares as floats; lazy images stay as they are."""
    return raw if isinstance(raw, LazyImages) else normalize(raw)


def _part(draw: Draw, images: torch.Tensor) -> Part:
    labels = None if draw.labels is None else torch.from_numpy(draw.labels).to(images.device)
    return Part(draw.pool, images, labels, rows=torch.from_numpy(draw.rows))


def _view(raw: Images, config: Augmentation, key: Key, name: str, strong: bool) -> torch.Tensor:
    images = crop_and_flip(raw, config, (*key, name))
    return distort(images, (*key, name)) if strong else images
