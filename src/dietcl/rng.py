"""All randomness is a pure function of a key such as (seed, t, phase, update, micro-batch, purpose)."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch

Part = int | str


def number(*key: Part) -> int:
    """Return 64 bits that depend on every part of the key and on nothing else."""
    text = f"{_start(key[:-1])}{_word(key[-1])}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=64)
def _start(key: tuple[Part, ...]) -> str:
    """Write all parts of a key but the last, which is often all that differs from the key before."""
    return "".join(f"{_word(part)}\x1f" for part in key)


def _word(part: Part) -> str:
    # A numpy integer counts as the number it is, and a text is never taken for a number.
    return f"str:{part}" if isinstance(part, str) else f"int:{int(part)}"


def numpy_generator(*key: Part) -> "np.random.Generator":
    """Return a numpy generator for the key."""
    import numpy as np

    return np.random.Generator(np.random.PCG64DXSM(number(*key)))


@contextmanager
def seeded(*key: Part) -> "Iterator[None]":
    """Let whatever draws from torch's global CPU generator inside draw by the key, and put the generator back."""
    import torch

    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed other devices.
        torch.default_generator.manual_seed(number(*key) >> 1)
        yield


def torch_generator(device: "torch.device | str", *key: Part) -> "torch.Generator":
    """Return a torch generator on the device for the key."""
    import torch

    # torch seeds are signed 64-bit in some back ends; 63 bits are safe everywhere.
    return torch.Generator(device).manual_seed(number(*key) >> 1)
