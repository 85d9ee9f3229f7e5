"""Augmentation and targets: identities, purity, and losses against soft targets written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dietcl.errors import UserError
from dietcl.streams.augment import crop_and_flip, make_batch, mix
from dietcl.streams.batch import Batch, Part
from dietcl.streams.normalize import denormalize, normalize
from dietcl.streams.options import Augmentation
from dietcl.streams.sampler import Draw

PLAIN = Augmentation(crop=1, flip=False, mixup=0, cutmix=0, smoothing=0)
MIRROR = Augmentation(crop=1, flip=True)


def noise(count: int = 8, size: int = 12, seed: int = 0) -> torch.Tensor:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    return torch.from_numpy(pixels)


def test_normalize_and_back() -> None:
    pixels = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    floats = normalize(pixels)
    assert floats.min() == -2
    assert floats.max() == 2
    torch.testing.assert_close(floats, (pixels.double() / 255 - 0.5).div(0.25).float(), rtol=0, atol=1e-6)
    assert torch.equal(denormalize(floats), pixels)
    assert denormalize(torch.tensor([-9.0, 9.0])).tolist() == [0, 255]
    assert pixels.flatten().tolist() == [*range(256)]  # the input is left alone


class TestCropAndFlip:
    def test_without_crop_and_flip_it_is_plain_normalization(self) -> None:
        images = noise()
        assert torch.equal(crop_and_flip(images, PLAIN, (0,)), normalize(images))

    def test_a_mirror_is_exact(self) -> None:
        images = noise(400, 5)
        out, plain = crop_and_flip(images, MIRROR, (0,)), normalize(images)
        same = (out == plain).flatten(1).all(1)
        mirrored = (out == plain.flip(-1)).flatten(1).all(1)
        assert (same ^ mirrored).all()
        assert abs(int(mirrored.sum()) - 200) < 4 * 10

    def test_pure(self) -> None:
        images, config = noise(), Augmentation(crop=0.3)
        torch.manual_seed(1)
        one = crop_and_flip(images, config, (0, 1, "a"))
        torch.manual_seed(2)
        before = torch.get_rng_state()
        assert torch.equal(crop_and_flip(images, config, (0, 1, "a")), one)
        assert torch.equal(torch.get_rng_state(), before)
        assert not torch.equal(crop_and_flip(images, config, (0, 2, "a")), one)

    def test_each_image_has_a_crop_of_its_own(self) -> None:
        images = noise(1).expand(6, -1, -1, -1)
        out = crop_and_flip(images, Augmentation(crop=0.3), (0,))
        assert len({tuple(image.flatten().tolist()) for image in out}) == 6

    @given(st.floats(0.02, 0.99), st.integers(0, 30))
    @settings(max_examples=30, deadline=None)
    def test_a_crop_keeps_its_share_of_the_image(self, crop: float, seed: int) -> None:
        """On two ramps the crop can be read off: its sides are the ranges of the ramps."""
        size = 64
        ramp = torch.linspace(0, 255, size).round().to(torch.uint8)
        pixels = torch.stack([ramp.expand(size, size), ramp[:, None].expand(size, size), ramp.expand(size, size)])
        images = pixels.expand(40, -1, -1, -1)
        out = crop_and_flip(images, Augmentation(crop=crop, flip=False), (seed,))
        span = out.amax((2, 3)) - out.amin((2, 3))
        width, height = (span[:, :2] / 4 * size / (size - 1)).clamp(max=1).unbind(1)
        slack = 2.5 / size  # the outermost samples lie half a pixel inside, and the border is flat
        area = (width + slack) * (height + slack)
        assert (area >= crop).all()
        wide = (width + slack) / (height - slack).clamp(min=1e-6)
        assert (wide >= 3 / 4).all()
        assert (((width - slack) / (height + slack)) <= 4 / 3).all()
        assert out.isfinite().all()
        assert out.min() >= -2.001
        assert out.max() <= 2.001

    def test_crops_cover_all_areas_and_places(self) -> None:
        size, count = 32, 2000
        ramp = torch.linspace(0, 255, size).round().to(torch.uint8)
        images = ramp.expand(3, size, size).expand(count, -1, -1, -1)
        out = crop_and_flip(images, Augmentation(crop=0.25, flip=False), (3,))
        center = out[:, 0].mean((1, 2))
        assert abs(float(center.mean())) < 4 * float(center.std()) / math.sqrt(count)
        assert center.max() > 0.5
        assert center.min() < -0.5


class TestMix:
    def part(self, count: int = 9, size: int = 8) -> Part:
        images = torch.arange(count).float()[:, None, None, None].expand(-1, 3, size, size).contiguous()
        return Part("labeled", images, torch.arange(count) % 4)

    def test_off(self) -> None:
        part = self.part()
        mixed = mix(part, PLAIN, (0,))
        assert torch.equal(mixed.images, part.images)
        assert torch.equal(mixed.weight, torch.ones(9))
        assert mixed.smoothing == 0
        assert mixed.pool == "labeled"

    @pytest.mark.parametrize(("mixup", "cutmix"), [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
    def test_partners_are_of_the_same_part_and_weights_are_pixel_shares(self, mixup: float, cutmix: float) -> None:
        kinds = set()
        for update in range(60):
            part = self.part()
            before = part.images.clone()
            mixed = mix(part, Augmentation(mixup=mixup, cutmix=cutmix), (0, update))
            assert torch.equal(part.images, before)
            assert torch.equal(mixed.labels, part.labels)
            assert set(mixed.partners.tolist()) <= set(part.labels.tolist())
            # Image i is the constant i, so that the pixels' mean tells how much of the partner is in it.
            partner = part.images.flip(0)[:, 0, 0, 0]
            own = part.images[:, 0, 0, 0]
            torch.testing.assert_close(mixed.partners, (partner.long()) % 4)
            mean = mixed.images.mean((1, 2, 3))
            torch.testing.assert_close(mean, mixed.weight * own + (1 - mixed.weight) * partner, rtol=0, atol=1e-5)
            assert ((mixed.weight >= 0) & (mixed.weight <= 1)).all()
            pasted = ((mixed.images == own[:, None, None, None]) | (mixed.images == partner[:, None, None, None])).all()
            kinds.add("cutmix" if pasted else "mixup")
            if cutmix and not mixup:
                # The box is a rectangle in the same place of every image and channel.
                box = mixed.images[0, 0] != 0
                assert pasted
                assert torch.equal(box, box.any(1)[:, None] & box.any(0)[None])
                assert torch.equal(mixed.images[0, 0], mixed.images[0, 2])
        assert kinds == {name for name, on in (("mixup", mixup), ("cutmix", cutmix)) if on}

    def test_pure(self) -> None:
        config = Augmentation()
        one, two, other = (mix(self.part(), config, (0, key)) for key in (1, 1, 2))
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.weight, two.weight)
        assert not torch.equal(one.images, other.images)

    @pytest.mark.parametrize("parameter", [0.2, 0.8, 1.0, 3.0])
    def test_weights_follow_the_beta_distribution(self, parameter: float) -> None:
        config = Augmentation(mixup=parameter, cutmix=0)
        weights = np.array([float(mix(self.part(2, 1), config, (0, i)).weight[0]) for i in range(2000)])
        variance = 1 / (4 * (2 * parameter + 1))
        assert abs(weights.mean() - 0.5) < 4 * math.sqrt(variance / 2000)
        assert abs(weights.var() / variance - 1) < 0.15

    def test_one_image_is_its_own_partner(self) -> None:
        part = Part("memory", torch.ones(1, 3, 4, 4), torch.tensor([2]))
        for key in range(5):
            mixed = mix(part, Augmentation(), (key,))
            torch.testing.assert_close(mixed.images, part.images)
            assert mixed.partners.tolist() == [2]


def written_out(part: Part, logits: torch.Tensor, only: list[int] | None) -> torch.Tensor:
    """Cross-entropy with soft targets, image by image and class by class, in double precision."""
    classes = list(range(logits.shape[1])) if only is None else only
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(part)):
        target = dict.fromkeys(classes, part.smoothing / len(classes))
        weight = 1.0 if part.weight is None else float(part.weight[i])
        target[int(part.labels[i])] += (1 - part.smoothing) * weight
        if part.partners is not None:
            target[int(part.partners[i])] += (1 - part.smoothing) * (1 - weight)
        assert math.isclose(sum(target.values()), 1, abs_tol=1e-6)
        row = logits[i].double()
        denominator = sum(torch.exp(row[c]) for c in classes)
        for c in classes:
            total = total - target[c] * torch.log(torch.exp(row[c]) / denominator)
    return total / len(part)


class TestCrossEntropy:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("mixed", [False, True])
    @pytest.mark.parametrize("only", [None, [4, 1, 5], [1, 4, 5, 0]])
    def test_equals_soft_targets_written_out(self, smoothing: float, mixed: bool, only: list[int] | None) -> None:
        generator = torch.Generator().manual_seed(3)
        labels = torch.tensor([1, 4, 5, 1, 5])
        part = Part(
            "labeled",
            torch.zeros(5, 3, 2, 2),
            labels,
            labels.flip(0) if mixed else None,
            torch.rand(5, generator=generator) if mixed else None,
            smoothing,
        )
        values = torch.randn(5, 6, generator=generator) * 3
        ours, theirs = values.clone().requires_grad_(), values.clone().requires_grad_()
        loss = part.cross_entropy(ours, None if only is None else torch.tensor(only))
        reference = written_out(part, theirs, only)
        assert abs(loss.item() - reference.item()) < 1e-6
        loss.backward()
        reference.backward()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)
        if only is not None:
            outside = [c for c in range(6) if c not in only]
            assert (ours.grad[:, outside] == 0).all()  # old classes are neither pushed nor pulled
            minus_infinity = values.clone()
            minus_infinity[:, outside] = -math.inf
            if not smoothing:
                own = torch.nn.functional.cross_entropy(minus_infinity, labels, reduction="none")
                if mixed:
                    other = torch.nn.functional.cross_entropy(minus_infinity, labels.flip(0), reduction="none")
                    own = part.weight * own + (1 - part.weight) * other
                torch.testing.assert_close(loss, own.mean())

    def test_by_hand(self) -> None:
        part = Part("labeled", torch.zeros(1, 3, 1, 1), torch.tensor([1]))
        logits = torch.tensor([[2.0, 1.0, 0.0]])
        assert float(part.cross_entropy(logits, torch.tensor([1, 2]))) == pytest.approx(0.3133, abs=5e-5)
        assert float(part.cross_entropy(logits)) == pytest.approx(1.4076, abs=5e-5)

    def test_all_classes_left_in_changes_nothing(self) -> None:
        part = mix(Part("labeled", torch.zeros(4, 3, 2, 2), torch.tensor([0, 1, 2, 1])), Augmentation(), (0,))
        logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        torch.testing.assert_close(part.cross_entropy(logits, torch.arange(3)), part.cross_entropy(logits))

    def test_one_class_left_in_has_no_loss(self) -> None:
        part = Part("labeled", torch.zeros(2, 3, 1, 1), torch.tensor([2, 2]), smoothing=0.1)
        assert float(part.cross_entropy(torch.arange(8.0).view(2, 4), torch.tensor([2]))) == 0

    def test_a_batch_is_one_mean_over_its_labeled_images(self) -> None:
        generator = torch.Generator().manual_seed(1)
        labeled = Part("labeled", torch.zeros(2, 3, 1, 1), torch.tensor([0, 1]), smoothing=0.1)
        memory = Part("memory", torch.zeros(6, 3, 1, 1), torch.tensor([0, 1, 2, 0, 1, 2]), smoothing=0.1)
        unlabeled = Part("unlabeled", torch.zeros(3, 3, 1, 1))
        batch = Batch(labeled=labeled, unlabeled=unlabeled, memory=memory, classes=torch.tensor([0, 1]), key=(0,))
        logits = [torch.randn(2, 3, generator=generator), torch.randn(6, 3, generator=generator)]
        together = torch.nn.functional.cross_entropy(
            torch.cat(logits), torch.cat([labeled.labels, memory.labels]), label_smoothing=0.1
        )
        torch.testing.assert_close(batch.cross_entropy(logits), together)
        assert [part.pool for part in batch.supervised] == ["labeled", "memory"]

    def test_guessed_labels_count_like_revealed_ones(self) -> None:
        generator = torch.Generator().manual_seed(2)
        sizes = {"labeled": 2, "memory": 3, "larder": 5}
        parts = {name: Part(name, torch.zeros(n, 3, 1, 1), torch.arange(n) % 3) for name, n in sizes.items()}
        unlabeled = Part("unlabeled", torch.zeros(4, 3, 1, 1))
        batch = Batch(**parts, unlabeled=unlabeled, classes=torch.tensor([0]), key=(0,))
        assert [part.pool for part in batch.supervised] == ["labeled", "memory", "larder"]
        assert [part.pool for part in batch.parts] == ["unlabeled", "labeled", "memory", "larder"]
        logits = [torch.randn(n, 3, generator=generator) for n in sizes.values()]
        labels = torch.cat([part.labels for part in parts.values()])
        together = torch.nn.functional.cross_entropy(torch.cat(logits), labels)
        torch.testing.assert_close(batch.cross_entropy(logits), together)


def test_a_batch_has_a_part_for_every_draw() -> None:
    draws = (
        Draw("unlabeled", np.arange(3), None),
        Draw("memory", np.arange(4), np.array([0, 1, 2, 0])),
    )
    images = [noise(3), noise(4, seed=1)]
    classes = torch.tensor([2])
    batch = make_batch(draws, images, classes, PLAIN, (1, 2))
    assert batch.labeled is None
    assert batch.unlabeled.labels is None
    assert torch.equal(batch.unlabeled.images, normalize(images[0]))
    assert batch.memory.labels.tolist() == [0, 1, 2, 0]
    assert batch.key == (1, 2)
    one, two = (make_batch(draws, images, classes, Augmentation(), (1, key)) for key in (2, 2))
    assert torch.equal(one.memory.images, two.memory.images)
    # Pools are augmented apart: what is drawn from one does not change the other.
    alone = make_batch(draws[1:], images[1:], classes, Augmentation(), (1, 2))
    assert torch.equal(alone.memory.images, one.memory.images)


def test_guessed_images_are_mixed_among_themselves_by_a_key_of_their_own() -> None:
    labels = np.array([2, 0, 1, 1])
    memory, larder = (Draw(pool, np.arange(4), labels) for pool in ("memory", "larder"))
    images, classes = noise(4), torch.tensor([2])
    batch = make_batch((memory, larder), [images, images], classes, Augmentation(), (1, 2))
    assert batch.larder.labels.tolist() == labels.tolist()
    assert batch.larder.partners.tolist() == labels[::-1].tolist()
    assert batch.larder.smoothing == Augmentation().smoothing
    assert not torch.equal(batch.larder.images, batch.memory.images)
    alone = make_batch((larder,), [images], classes, Augmentation(), (1, 2))
    assert [part.pool for part in alone.parts] == ["larder"]
    assert torch.equal(alone.larder.images, batch.larder.images)
    plain = make_batch((larder,), [images], classes, None, (1, 2)).larder
    assert plain.partners is None
    assert torch.equal(plain.images, normalize(images))


@pytest.mark.parametrize(
    "options",
    [{"crop": 0.0}, {"crop": 1.5}, {"crop": float("nan")}, {"mixup": -1.0}, {"cutmix": -0.1}, {"smoothing": 1.0}],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(options))}"):
        Augmentation(**options)
