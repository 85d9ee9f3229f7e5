"""The metered network: the only way to run the network, charging the ledger before every run."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dietcl.budget.ledger import Ledger
from dietcl.keys import torch_generator
from dietcl.models.network import Network
from dietcl.streams.batch import Part


class Unmetered(RuntimeError):
    """Somebody ran the network without paying."""


class Net:
    """What a method sees of the network; every call is charged before it computes."""

    def __init__(self, network: Network, ledger: Ledger) -> None:
        self._network = network
        self._ledger = ledger
        self._paid = False
        for module in network.modules():
            # Whatever has weights of its own is guarded, so that no part of the network runs unpaid either.
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_pre_hook(self._refuse_unpaid)

    @property
    def classes(self) -> int:
        """Number of classes revealed so far."""
        return self._network.head.classes

    def logits(self, *parts: Part) -> list[torch.Tensor]:
        """Return each part's logits with gradient, computed in one forward."""
        if not parts:
            return []
        self._ledger.require("train", sum(len(part) for part in parts))
        for part in parts:
            self._ledger.charge(part.pool, "train", len(part))
        with self._running():
            features = self._network.features(torch.cat([part.images for part in parts]))
            logits = self._network.logits_of(features)
        return list(logits.split([len(part) for part in parts]))

    def features(self, images: torch.Tensor, purpose: str) -> torch.Tensor:
        """Return features without gradient."""
        self._ledger.charge(purpose, "forward", len(images))
        with self._running(), torch.no_grad():
            return self._network.features(images)

    def scores(self, images: torch.Tensor, purpose: str = "predict") -> torch.Tensor:
        """Return logits without gradient."""
        self._ledger.charge(purpose, "forward", len(images))
        with self._running(), torch.no_grad():
            return self._network.logits_of(self._network.features(images))

    def reconstruct(self, part: Part, key: tuple[int | str, ...]) -> torch.Tensor:
        """Return the mean reconstruction loss with gradient, under masks drawn by the key."""
        self._ledger.charge("reconstruct", "reconstruct", len(part))
        with self._running():
            generator = torch_generator(part.images.device, *key, "mask")
            losses, _, _ = self._network.reconstruct(part.images, generator)
        return losses.mean()

    def reconstructions(self, images: torch.Tensor, key: tuple[int | str, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return predicted patches and masks without gradient."""
        self._ledger.charge("reconstruct", "reconstruct_forward", len(images))
        with self._running(), torch.no_grad():
            _, patches, mask = self._network.reconstruct(images, torch_generator(images.device, *key, "mask"))
        return patches, mask

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._paid = True
        try:
            yield
        finally:
            self._paid = False

    def _refuse_unpaid(self, module: torch.nn.Module, inputs: Any) -> None:
        if not self._paid:
            raise Unmetered(f"{type(module).__name__} was run without a charge; call it through net")
