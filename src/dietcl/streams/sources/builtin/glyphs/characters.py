"""Which characters become classes, which only serve for pre-training, and which look alike."""

import json
import unicodedata
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dietcl.files import write_bytes
from dietcl.rng import number
from dietcl.streams.sources.builtin.glyphs.fonts import coverage, draw, faces
from dietcl.streams.sources.builtin.glyphs.glyphs import VERSION

CLASS_FACES = 12  # a character that at least this many faces show can be a class
SAME = 0.004  # two characters nearer than this are drawn the same
AKIN = 0.08  # two characters nearer than this are hard to tell apart in a poor image
FOREIGN = 0.15  # characters to pre-train on are farther than this from every class candidate in every compared face
_SHARE = 1 / 3  # of the faces in which two characters must look alike to be one class, or one family
_PROBE = 24  # side of the compared renderings in pixels
_REFERENCES = ("DejaVuSans", "DejaVuSerif")  # these two cover nearly every class

Floats = npt.NDArray[np.float32]
Probes = tuple[npt.NDArray[np.int64], Floats]  # rows of a list of characters, their renderings


@dataclass(frozen=True)
class Characters:
    """Classes to learn and other characters to pre-train on, each with the number of its family of near look-alikes."""

    glyphs: dict[str, int]
    upstream: dict[str, int]
    merged: dict[str, str]  # a character that is not a class because it looks like one -> that class


def characters(cache: Path) -> Characters:
    """Return the pools of characters, from the cache folder if they were found before."""
    path = cache / f"characters-{VERSION}-{version('matplotlib')}-{version('pillow')}.json"
    try:
        return Characters(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        found = _find_characters()
    write_bytes(path, json.dumps(asdict(found)).encode())
    return found


def choose(pool: dict[str, int], count: int, seed: int) -> list[str]:
    """Return seeded characters, one per family while families last; a shorter choice begins a longer one."""
    families: dict[int, list[str]] = {}
    for character in sorted(pool, key=lambda character: number(seed, "character", character)):
        families.setdefault(pool[character], []).append(character)
    ranked = [(rank, character) for family in families.values() for rank, character in enumerate(family)]
    return [character for _, character in sorted(ranked, key=lambda entry: entry[0])[:count]]


def _find_characters() -> Characters:
    covered = coverage()
    candidates = [character for character in covered if len(covered[character]) >= CLASS_FACES]
    known = set(candidates)
    others = [character for character in covered if character not in known and _plain(character) not in known]
    # The obliques are slanted copies of upright faces and would tell nothing new.
    names = [face for face in faces() if not face.endswith("Oblique")]
    probes = {face: _probes(candidates, face) for face in names}
    other_probes = {face: _probes(others, face) for face in names}
    alike: set[str] = set()
    for face, (rows, images) in other_probes.items():
        for reference in {face, *_REFERENCES}:
            near = (_distances(images, probes[reference][1]) < FOREIGN).any(axis=1)
            alike.update(others[row] for row in rows[near])
    glyphs, merged = _group(candidates, probes.values())
    foreign, _ = _group(others, other_probes.values())
    return Characters(glyphs, {c: family for c, family in foreign.items() if c not in alike}, merged)


def _plain(character: str) -> str:
    """Strip marks and styles, as of an accented, circled or mathematical bold letter."""
    parts = unicodedata.normalize("NFKD", character)
    return "".join(part for part in parts if not unicodedata.combining(part))


def _probes(characters: list[str], face: str) -> Probes:
    shown = [(row, character) for row, character in enumerate(characters) if face in coverage()[character]]
    drawn = {row: image for row, character in shown if (image := draw(character, face, _PROBE, one_size=True))}
    images: Floats = np.array([np.asarray(image) for image in drawn.values()], np.float32).reshape(-1, _PROBE, _PROBE)
    for axis in (1, 2):  # a slight blur, so that half a pixel of displacement is no difference
        images = (np.roll(images, 1, axis) + 2 * images + np.roll(images, -1, axis)) / np.float32(4)
    return np.array(list(drawn), dtype=np.int64), images.reshape(-1, _PROBE * _PROBE)


def _distances(left: Floats, right: Floats) -> Floats:
    """Return squared differences over the ink of the one with more of it: 0 is the same, 1 and more is unlike."""
    ink_left, ink_right = (left**2).sum(axis=1)[:, None], (right**2).sum(axis=1)[None]
    distances: Floats = (ink_left + ink_right - 2 * left @ right.T) / np.maximum(ink_left, ink_right)
    return distances


def _group(characters: list[str], probes: Iterable[Probes]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the family of each class and the class of each merged character; blank characters are in neither."""
    shape = (len(characters), len(characters))
    both, same, akin = (np.zeros(shape, dtype=np.float32) for _ in range(3))
    for rows, images in probes:
        pairs = np.ix_(rows, rows)
        distances = _distances(images, images)
        both[pairs] += 1
        same[pairs] += distances < SAME
        akin[pairs] += distances < AKIN
    least = np.maximum(_SHARE * both, 1)
    classes, families = _components(same >= least), _components(akin >= least)
    shown = np.flatnonzero(np.diag(both))
    family = {characters[row]: int(families[row]) for row in shown if classes[row] == row}
    return family, {characters[row]: characters[classes[row]] for row in shown if classes[row] != row}


def _components(near: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the first row of each row's connected component."""
    first = np.arange(len(near))
    for left, right in np.argwhere(np.triu(near, 1)):
        low, high = sorted((first[left], first[right]))
        first[first == high] = low
    return first
