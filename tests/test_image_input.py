"""Images in any form a user has them: equal pictures become equal pixels, and what is not an image gets a sentence."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from dietcl.streams.decode import Unreadable
from dietcl.streams.image_input import to_pixels

SIDE = 8
RGB = arrays.arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40), st.just(3)))


def png(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return buffer.getvalue()


@settings(max_examples=40, deadline=None)
@given(RGB)
def test_equal_pictures_of_any_size_become_equal_pixels(pixels):
    picture, tensor = Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)
    expected = to_pixels(png(picture), SIDE)
    opaque = np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], axis=2)
    forms = [
        pixels,
        pixels.astype(np.float32) / 255,
        pixels.astype(np.float64) / 255,
        opaque,
        np.asfortranarray(pixels),
        picture,
        picture.convert("RGBA"),
        Image.open(io.BytesIO(png(picture))),
        png(picture.convert("RGBA")),
    ]
    if pixels.shape[2] == 3 and tensor.shape[1] > 4 and tensor.shape[2] > 4:  # fewer rows might be channels
        forms += [tensor, tensor.float() / 255, tensor.permute(1, 2, 0), torch.from_numpy(opaque).permute(2, 0, 1)]
    for form in forms:
        np.testing.assert_array_equal(to_pixels(form, SIDE), expected)


@settings(max_examples=20, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(5, 40), st.integers(5, 40))))
def test_equal_gray_pictures_become_equal_pixels(pixels):
    picture = Image.fromarray(pixels)
    expected = to_pixels(png(picture), SIDE)
    assert (expected == expected[..., :1]).all()
    deep = Image.fromarray(pixels.astype(np.uint16) * 257)
    assert deep.mode == "I;16"
    forms = [pixels, pixels[..., None], pixels / 255, torch.from_numpy(pixels), torch.from_numpy(pixels)[None]]
    forms += [picture, picture.convert("P"), deep, png(deep)]
    for form in forms:
        np.testing.assert_array_equal(to_pixels(form, SIDE), expected)


@settings(max_examples=20, deadline=None)
@given(arrays.arrays(np.uint8, st.tuples(st.integers(5, 20), st.integers(5, 20), st.just(3))))
def test_half_floats_and_16_bits_are_images(pixels):
    deep = pixels.astype(np.uint16) * 256 + 200
    np.testing.assert_array_equal(to_pixels(deep, SIDE), to_pixels(pixels, SIDE))
    np.testing.assert_array_equal(to_pixels(torch.from_numpy(deep), SIDE), to_pixels(pixels, SIDE))
    for kind, step in ((torch.float16, 0), (torch.bfloat16, 1)):  # a step of bfloat16 below 1 is 2**-8
        tensor = torch.from_numpy(pixels).permute(2, 0, 1).to(kind) / 255
        found = to_pixels(tensor, 20).astype(int)
        assert np.abs(found - to_pixels(pixels, 20)).max() <= step


def test_large_pictures_are_reduced_alike_in_every_form(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (100, 70, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    expected = to_pixels(tmp_path / "large.png", SIDE)
    assert min(expected.shape[:2]) < 2 * 2 * SIDE  # blocks of four pixels
    for form in (str(tmp_path / "large.png"), pixels, Image.fromarray(pixels), torch.from_numpy(pixels)):
        np.testing.assert_array_equal(to_pixels(form, SIDE), expected)


def test_orientation_is_applied_to_files_and_pil_images():
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned to the right
    data = png(Image.fromarray(pixels), exif=exif)
    upright = np.rot90(pixels, -1)
    np.testing.assert_array_equal(to_pixels(data, 2), upright)
    np.testing.assert_array_equal(to_pixels(Image.open(io.BytesIO(data)), 2), upright)


@pytest.mark.parametrize(
    ("image", "sentence"),
    [
        (np.zeros((3, 5, 5), np.uint8), r"an array of shape \(3, 5, 5\) is not an image"),
        (np.zeros((0, 5, 3), np.uint8), "is not an image"),
        (np.zeros((5, 5, 3), np.int64), "an array of int64 is not an image; give uint8, uint16, or floats"),
        (np.full((5, 5, 3), 200.0), "values from 0 to 1; give 8-bit values as uint8"),
        (np.full((5, 5, 3), np.nan), "values from 0 to 1"),
        (torch.zeros(2, 5, 5), "is not an image"),
        (7, "^int is not an image"),
        (Image.new("RGB", (0, 5)), r"the image has no pixels \(0 x 5\)"),
        (Image.new("L", (5, 0)), r"the image has no pixels \(5 x 0\)"),
        (torch.zeros(3, 5, 5, device="meta"), "not a readable image"),
        (torch.zeros(5, 5).to_sparse(), "not a readable image"),
        (torch.full((3, 5, 5), 9.0, dtype=torch.bfloat16), "values from 0 to 1"),
        (b"", "the file is empty"),
        ("nowhere.jpg", "cannot be read .No such file"),
        (Image.open(io.BytesIO(png(Image.effect_noise((64, 64), 90))[:900])), "not a readable image .*truncated"),
    ],
)
def test_what_is_not_an_image_gets_one_sentence(image, sentence):
    with pytest.raises(Unreadable, match=sentence):
        to_pixels(image, SIDE)
