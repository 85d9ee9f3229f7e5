"""Pictures: crops lie inside, have the right sizes and shapes, reach every corner, and show what is there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dietcl.engine.loop import learn
from dietcl.rng import numpy_generator
from dietcl.streams.augment import crop_and_flip, make_batch, plain_part
from dietcl.streams.index import open_manifest
from dietcl.streams.loader import Loader, Pictures, crop_boxes
from dietcl.streams.normalize import normalize
from dietcl.streams.options import Augmentation, Mix, Recipe
from dietcl.streams.sampler import Draw, pools_of, sample
from dietcl.streams.storage import Storage, squares
from dietcl.streams.stream import build_stream
from helpers.photos import photo, write_photos
from helpers.tiny import AMPLE, tiny_config, tiny_learner

SIZE = 16
CPU = torch.device("cpu")
PLAIN = Augmentation(crop=0.2, flip=False, mixup=0, cutmix=0, smoothing=0)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def pictures_of(pixels: list[np.ndarray], pool: ThreadPoolExecutor, size: int = SIZE) -> Pictures:
    return Pictures(pixels, size, CPU, pool)


def some(count: int = 40) -> list[np.ndarray]:
    return [photo(number) for number in range(count)]


SIDES = st.one_of(st.integers(1, 12), st.integers(1, 3000), st.sampled_from([1, 2, 3, 224, 2999, 3000]))
CHANCE = st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 0.5, np.nextafter(1, 0)]))


class TestBoxes:
    @given(
        st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=5),
        st.floats(0.01, 0.999),
        st.tuples(*[CHANCE] * 5),
    )
    @example([(1, 3000), (3000, 1), (1, 1), (2, 3), (3000, 3000)], 0.08, (0.0, 0.0, 0.0, 0.0, 0.0))
    @example([(1, 3000), (3000, 1), (1, 1), (2, 3), (3000, 3000)], 0.999, (np.nextafter(1, 0),) * 5)
    @settings(max_examples=400, deadline=None)
    def test_inside_and_of_the_right_size_and_shape(
        self, sides: list[tuple[int, int]], least: float, chance: tuple[float, ...]
    ) -> None:
        shapes = np.array(sides)
        boxes = crop_boxes(shapes, least, np.tile(np.array(chance)[:, None], (1, len(sides))))
        assert boxes.dtype == np.int64
        for (height, width), (top, left, h, w) in zip(sides, boxes.tolist(), strict=True):
            assert 1 <= h <= height
            assert 1 <= w <= width
            assert 0 <= top <= height - h
            assert 0 <= left <= width - w
            # A long picture's largest crop of a shape up to 4:3 is not all of it.
            long = max(height, width) / min(height, width)
            bound = min(least, 4 / 3 / long)
            # Each side is off by half a pixel at most, and none is less than one pixel.
            assert (h + 0.5) * (w + 0.5) >= bound * height * width * (1 - 1e-9)
            if min(h, w) > 1:
                assert (h - 0.5) * (w - 0.5) <= height * width * min(1, 4 / 3 / long) * (1 + 1e-9)
                assert (w - 0.5) / (h + 0.5) <= 4 / 3 + 1e-9
                assert (w + 0.5) / (h - 0.5) >= 3 / 4 - 1e-9

    @given(st.integers(40, 3000), st.integers(40, 3000), st.floats(0.05, 0.95))
    @settings(max_examples=50, deadline=None)
    def test_areas_and_shapes_fill_their_ranges(self, height: int, width: int, least: float) -> None:
        long = max(height, width) / min(height, width)
        most = min(1, 4 / 3 / long)
        assume(most > least + 0.05)
        boxes = crop_boxes(np.tile([height, width], (2000, 1)), least, np.random.default_rng(0).random((5, 2000)))
        area = boxes[:, 2] * boxes[:, 3] / (height * width)
        slack = 3 / min(height, width)
        assert abs(area.min() - least) < 0.02 + slack
        assert abs(area.max() - most) < 0.02 + slack
        assert abs(np.median(area) - (least + most) / 2) < 0.04 + slack
        if least < 0.5 * most:  # small ones have room for every shape
            small = boxes[area < 0.55 * most]
            aspect = small[:, 3] / small[:, 2]
            assert aspect.min() < 0.82
            assert aspect.max() > 1.23
            assert abs(np.log(np.median(aspect))) < 0.12  # neither wide nor tall ones are preferred

    @pytest.mark.parametrize(
        ("shape", "box"),
        [
            ((10, 10), [0, 0, 10, 10]),
            ((20, 30), [0, 5, 20, 20]),
            ((31, 20), [5, 0, 20, 20]),
            ((1, 3000), [0, 1499, 1, 1]),
            ((3000, 1), [1499, 0, 1, 1]),
        ],
    )
    def test_without_crops_it_is_the_square_in_the_middle(self, shape: tuple[int, int], box: list[int]) -> None:
        random = np.random.default_rng(0).random((5, 3))
        assert crop_boxes(np.array([shape] * 3), 1.0, random).tolist() == [box] * 3

    @pytest.mark.parametrize("shape", [(40, 60), (60, 40), (50, 50)])
    def test_every_corner_is_reached_and_both_sides_alike(self, shape: tuple[int, int]) -> None:
        height, width = shape
        count = 4000
        top, left, h, w = crop_boxes(np.tile(shape, (count, 1)), 0.08, np.random.default_rng(1).random((5, count))).T
        up, down = (top == 0).sum(), (top + h == height).sum()
        first, last = (left == 0).sum(), (left + w == width).sum()
        for touching in (up, down, first, last):
            assert touching > count / 100
        for one, other in ((up, down), (first, last)):
            assert abs(int(one) - int(other)) < 5 * np.sqrt(one + other)
        for vertical in (top == 0, top + h == height):
            for horizontal in (left == 0, left + w == width):
                assert (vertical & horizontal).any()
        # Where a crop lies is uniform over where it may lie.
        place = top[h < height] / (height - h[h < height])
        assert abs(place.mean() - 0.5) < 0.03


class TestCrops:
    def test_the_key_alone_decides(self, pool: ThreadPoolExecutor) -> None:
        config = Augmentation(crop=0.2)
        with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(4) as four:
            found = [pictures_of(some(), threads).crops(config, (3, "labeled")) for threads in (one, four, pool)]
        assert found[0].shape == (40, 3, SIZE, SIZE)
        assert found[0].dtype == torch.uint8
        assert all(torch.equal(found[0], other) for other in found[1:])
        pictures = pictures_of(some(), pool)
        assert torch.equal(pictures.crops(config, (3, "labeled")), found[0])
        for key in ((4, "labeled"), (3, "memory"), (3, "labeled", "view")):
            assert (pictures.crops(config, key) != found[0]).float().mean() > 0.5

    def test_what_is_cropped_ahead_is_the_same(self, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
        config = Augmentation(crop=0.3)
        expected = pictures_of(some(), pool).crops(config, (1, 2, "memory"))
        other = pictures_of(some(), pool).crops(config, (1, 2, "memory", "view"))
        ahead = pictures_of(some(), pool)
        ahead.crop_ahead(config, (1, 2, "memory"))
        assert torch.equal(ahead.crops(config, (1, 2, "memory", "view")), other)  # any other is still made
        monkeypatch.setattr(Pictures, "_cropped", None)
        for _ in range(2):
            assert torch.equal(ahead.crops(config, (1, 2, "memory")), expected)

    @pytest.mark.parametrize("crop", [0.08, 1.0])
    def test_half_are_mirrored_or_none(self, pool: ThreadPoolExecutor, crop: float) -> None:
        ramp = np.tile(np.arange(0, 240, 4, dtype=np.uint8)[None, :, None], (40, 1, 3))  # brighter to the right
        pictures = pictures_of([ramp] * 600, pool)

        def mirrored(flip: bool) -> torch.Tensor:
            crops = pictures.crops(Augmentation(crop=crop, flip=flip), (5,)).int()
            rise = crops[..., -1] - crops[..., 0]
            assert (rise != 0).all()
            assert ((rise > 0).all((1, 2)) | (rise < 0).all((1, 2))).all()
            return rise[:, 0, 0] < 0

        share = mirrored(True).float().mean().item()
        assert abs(share - 0.5) < 0.1
        assert not mirrored(False).any()
        # Mirroring changes nothing else.
        plain = pictures.crops(Augmentation(crop=crop, flip=False), (5,))
        turned = pictures.crops(Augmentation(crop=crop, flip=True), (5,))
        where = mirrored(True)
        assert torch.equal(turned[~where], plain[~where])
        assert torch.equal(turned[where], plain[where].flip(-1))

    @pytest.mark.parametrize("shape", [(60, 90), (90, 60), (200, 200), (20, 30), (16, 16), (9, 120)])
    @pytest.mark.parametrize("axis", [0, 1])
    @pytest.mark.parametrize("crop", [0.1, 0.6, 1.0])
    def test_a_ramp_stays_the_ramp_that_it_is(
        self, pool: ThreadPoolExecutor, shape: tuple[int, int], axis: int, crop: float
    ) -> None:
        slope = 200 / max(shape)
        place = np.indices(shape)[axis]
        picture = np.repeat(np.round(20 + slope * place).astype(np.uint8)[..., None], 3, 2)
        count, key = 50, (9, "unlabeled")
        config = Augmentation(crop=crop, flip=False)
        crops = pictures_of([picture] * count, pool).crops(config, key).numpy().astype(float)
        boxes = crop_boxes(np.tile(shape, (count, 1)), crop, numpy_generator(*key, "crop").random((5, count)))
        start, extent = boxes[:, axis], boxes[:, 2 + axis]
        centers = (np.arange(SIZE) + 0.5) / SIZE * extent[:, None] - 0.5
        centers = start[:, None] + centers.clip(0, extent[:, None] - 1)
        expected = (20 + slope * centers)[:, None]
        expected = expected[..., None] if axis == 0 else expected[..., None, :]
        # A crop that is enlarged repeats its outermost pixels, and no value is further off than rounding allows.
        assert np.abs(crops - expected).max() <= 2

    def test_nothing_is_skipped_where_a_large_crop_shrinks(self, pool: ThreadPoolExecutor) -> None:
        stripes = np.zeros((160, 160, 3), np.uint8)
        stripes[:, ::4] = 200  # a quarter of all columns: 50 on average
        crops = pictures_of([stripes] * 30, pool).crops(Augmentation(crop=0.5, flip=False), (0,)).float()
        assert (crops - 50).abs().mean() < 8

    @pytest.mark.parametrize("shape", [(1, 3000), (3000, 1), (1, 1), (2, 5)])
    def test_extreme_shapes(self, pool: ThreadPoolExecutor, shape: tuple[int, int]) -> None:
        picture = np.full((*shape, 3), 77, np.uint8)
        for crop in (0.08, 1.0):
            assert (pictures_of([picture] * 20, pool).crops(Augmentation(crop=crop), (0,)) == 77).all()

    def test_without_crops_and_mirrors_it_is_the_middle(self, pool: ThreadPoolExecutor) -> None:
        square = photo(2)
        assert square.shape == (SIZE, SIZE, 3)
        tall = np.concatenate([np.zeros((5, SIZE, 3), np.uint8), square, np.zeros((6, SIZE, 3), np.uint8)])
        pictures = pictures_of([square, tall], pool)
        found = pictures.crops(Augmentation(crop=1, flip=False), (0,))
        assert torch.equal(found, torch.from_numpy(np.stack([square, square])).permute(0, 3, 1, 2))
        assert torch.equal(found, pictures.squares())

    def test_the_pictures_themselves_stay_as_they_are(self, pool: ThreadPoolExecutor) -> None:
        pixels = some(10)
        before = [picture.copy() for picture in pixels]
        for picture in pixels:
            picture.flags.writeable = False
        pictures = pictures_of(pixels, pool)
        pictures.crops(Augmentation(crop=0.3), (0,))
        normalize(pictures.crops(Augmentation(crop=1), (0,)))
        for picture, old in zip(pixels, before, strict=True):
            np.testing.assert_array_equal(picture, old)


class TestBatches:
    def draws(self) -> tuple[Draw, ...]:
        rows = np.arange(12)
        return Draw("unlabeled", rows, None, (7, 1)), Draw("labeled", rows, rows % 3, (7, 1))

    def test_values_are_normalized(self, pool: ThreadPoolExecutor) -> None:
        pictures = pictures_of(some(12), pool)
        crops = pictures.crops(PLAIN, (7, 1, "x"))
        expected = (crops.double() / 255 - 0.5) / 0.25
        found = crop_and_flip(pictures, PLAIN, (7, 1, "x"))
        assert found.dtype == torch.float32
        assert (found - expected).abs().max() < 1e-5
        plain = plain_part(self.draws()[1], pictures)
        assert (plain.images - (squares(some(12), SIZE).double() / 255 - 0.5) / 0.25).abs().max() < 1e-5

    @pytest.mark.parametrize("crop_ahead", [False, True])
    def test_views_are_further_crops_of_the_same_pictures(self, pool: ThreadPoolExecutor, crop_ahead: bool) -> None:
        pixels = [np.full((24, 36, 3), 10 * i, np.uint8) for i in range(12)]
        for i, picture in enumerate(pixels):
            picture[:, ::2, 0] += 5 + i  # so that different crops differ
        raw = [pictures_of(pixels, pool), pictures_of(pixels, pool)]
        draws = self.draws()
        if crop_ahead:
            for pictures, draw in zip(raw, draws, strict=True):
                pictures.crop_ahead(PLAIN, (*draw.key, draw.pool))
        batch = make_batch(draws, list(raw), torch.arange(3), PLAIN, (7, 1))
        assert batch.unlabeled is not None
        assert batch.labeled is not None
        for part, pictures in ((batch.unlabeled, raw[0]), (batch.labeled, raw[1])):
            first = part.images
            assert torch.equal(first, normalize(pictures.crops(PLAIN, (7, 1, part.pool))))
            one, two, strong = part.view("one"), part.view("two"), part.view("one", strong=True)
            assert torch.equal(one, part.view("one"))
            for a, b in ((first, one), (first, two), (one, two), (one, strong)):
                assert a.shape == b.shape == (12, 3, SIZE, SIZE)
                assert not torch.equal(a, b)
            for view in (first, one, two):  # every one of its own picture
                level = view[:, 1].mean((1, 2)) * 0.25 * 255 + 127.5
                np.testing.assert_allclose(level, [10 * i for i in range(12)], atol=0.01)
            assert torch.equal(part.take(slice(3, 5)).view("two"), two[3:5])
        assert not torch.equal(batch.unlabeled.images, batch.labeled.images)  # pools are cropped apart

    def test_what_the_loader_hands_out(self, tmp_path: Path) -> None:
        """From files, in the order of the draws; read ahead or not, the batch is the same."""
        index = open_manifest(write_photos(tmp_path))
        stream = build_stream("s", index, Recipe(recipe="data", time_steps=1, label_rate=0.5), 0)
        mix = Mix(unlabeled=1, labeled=1)
        pools = pools_of(stream, 1, mix)
        keys = [(0, 1, 0, update, 0) for update in range(3)]
        config = Augmentation(crop=0.3)
        batches = []
        for ahead in (None, config):
            loader = Loader(stream, Storage(index, SIZE), CPU)
            drawn = (sample(pools, mix.counts(12, pools), key) for key in keys)
            for key, (draws, images) in zip(keys, loader.iterate(drawn, ahead=ahead), strict=True):
                assert all(isinstance(pictures, Pictures) for pictures in images)
                for draw, pictures in zip(draws, images, strict=True):
                    assert isinstance(pictures, Pictures)
                    for row, pixels in zip(stream.index_row[draw.rows].tolist(), pictures.pixels, strict=True):
                        np.testing.assert_array_equal(pixels, photo(row))
                batches.append(make_batch(draws, images, torch.arange(6), config, key))
            assert loader.waited > 0
            assert loader.substituted == 0
        for late, early in zip(batches[:3], batches[3:], strict=True):
            for one, other in zip(late.parts, early.parts, strict=True):
                assert torch.equal(one.images, other.images)
                assert torch.equal(one.view("v"), other.view("v"))
                assert torch.equal(one.rows, other.rows)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.mark.parametrize("method", ["dietcl", "cassle", "fixmatch", "ncm"])
def test_methods_learn_from_files(photos: Path, method: str) -> None:
    config = tiny_config(photos, method, budget=AMPLE.get(method, "2"))
    weights = []
    for _ in range(2):
        learner = tiny_learner(config)
        start = {name: value.clone() for name, value in learner.network.state_dict().items()}
        assert next(learn(learner)) == 1
        assert learner.ledger.closed[0].spent > 0
        assert learner.counts.count[0].sum() == 16  # the test images of the first two time steps
        weights.append(learner.network.state_dict())
        if method != "ncm":
            assert any(not torch.equal(value, start[name]) for name, value in weights[0].items() if name in start)
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
