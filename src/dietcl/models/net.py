"""The metered network: the only way to run the network, charging the ledger before every run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from dietcl.budget.cost import Operation
from dietcl.budget.ledger import Ledger, Overdraft
from dietcl.models.flops import count_flops
from dietcl.models.network import Network, Weights
from dietcl.rng import seeded, torch_generator
from dietcl.streams.batch import Part
from dietcl.streams.feature_lookup import FeatureLookup, to_half
from dietcl.streams.lazy_images import LazyImages, View
from dietcl.streams.stream import TimeStep


class Unmetered(RuntimeError):
    """The network was run without a charge to the budget."""


class Net:
    """What a method sees of the network; charges for every call first, without gradient where torch records none."""

    def __init__(
        self,
        network: Network,
        ledger: Ledger,
        seed: int,
        initial: Callable[[], Weights],
        notify: Callable[[str], None],
        precision: torch.dtype = torch.float32,
        lookup: FeatureLookup | None = None,
    ) -> None:
        """`lookup` keeps features of unchanged images, if the encoder is frozen."""
        self._network, self._ledger, self._seed, self._initial = network, ledger, seed, initial
        self.notify = notify
        """Shows the user a sentence."""
        self.dim = network.encoder.dim
        """Number of features of an image."""
        self._precision, self._lookup = precision, lookup
        self._module_flops: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], int]] = WeakKeyDictionary()
        self._guarded: WeakSet[nn.Module] = WeakSet()
        self._locks: list[RemovableHandle] = []
        self._guard(network)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along one side of an image, and pixels along one side of a patch."""
        return self._network.tokens.grid, self._network.tokens.patch

    @property
    def classes(self) -> int:
        """Number of classes revealed so far."""
        return self._network.head.classes

    @property
    def is_frozen(self) -> bool:
        """Whether the encoder's weights are fixed, so that features never change."""
        return self._network.is_frozen

    def relative_flops(self, operation: Operation) -> float:
        """Return the FLOPs of an operation for one image over those of a pass."""
        cost = self._ledger.cost
        return cost.flops(operation, self.classes) / cost.pass_flops(self.classes)

    def logits(self, *parts: Part) -> list[Tensor]:
        """Return each part's logits with gradient, computed in one forward."""
        if not parts:
            return []
        sizes = [len(part.images) for part in parts]
        self._ledger.require("train", sum(sizes))
        for part, size in zip(parts, sizes, strict=True):
            self._ledger.charge(part.pool, "train", size)
        with self._running():
            logits = _full(self._network.head(self._network.features(torch.cat([part.images for part in parts]))))
        return list(logits.split(sizes))

    def encode(self, images: Tensor, purpose: str) -> Tensor:
        """Return features with gradient, at the price of logits."""
        with self._charged(purpose, "forward", images, with_grad="train"):
            return _full(self._network.features(images))

    def classify(self, features: Tensor, purpose: str) -> Tensor:
        """Return the logits of given features with gradient; `encode` does not pay for this head."""
        with self._charged(purpose, "head_forward", features, with_grad="head_train"):
            return _full(self._network.logits_of(features))

    def stages(self, images: Tensor, count: int, purpose: str) -> list[Tensor]:
        """Return maps of features [B, dim, grid, grid] with gradient from `count` depths of the encoder."""
        with self._charged(purpose, "forward", images, with_grad="train"):
            return [_full(stage) for stage in self._network.stages(images, count)]

    def prompted(self, images: Tensor, prompts_BPD: Tensor, purpose: str, frozen: bool) -> Tensor:
        """Return the mean output token of the prompts, with gradient: for the prompts alone if frozen."""
        operation: Operation = "prompt" if frozen else "prompt_train"
        weights = self.weights(live=False) if frozen else None
        with self._charged(purpose, "prompt_forward", images, with_grad=operation, prompts=prompts_BPD.shape[1]):
            return _full(self._network.prompted(images, prompts_BPD, weights))

    def reconstruct(self, part: Part, key: tuple[int | str, ...]) -> Tensor:
        """Return the mean reconstruction loss with gradient, under masks drawn by the key."""
        self._ledger.charge("reconstruct", "reconstruct", len(part.images))
        with self._running():
            losses, *_ = self._network.reconstruct(part.images, torch_generator(part.images.device, *key, "mask"))
        return _full(losses).mean()

    def run(self, module: nn.Module, *inputs: Tensor, purpose: str, weights: Weights | None = None) -> Any:
        """Run a module of the method with gradient, or without one under the given weights."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and weights is None):
            rows = len(inputs[0])
            if any(len(value) != rows for value in inputs):
                raise ValueError(f"{type(module).__name__}: inputs of {[len(value) for value in inputs]} rows differ")
            self._ledger.charge_flops(purpose, "module", rows * self._flops_of(module, inputs), rows)
            with self._running():
                output = module(*inputs) if weights is None else functional_call(module, dict(weights), inputs)
        return tuple(map(_full, output)) if isinstance(output, tuple) else _full(output)

    def features(self, images: Tensor, purpose: str, weights: Weights | None = None) -> Tensor:
        """Return features without gradient, of the network or under other weights of it."""
        with self._charged(purpose, "forward", images):
            return self._known("features", images, purpose, weights)

    def scores(self, images: Tensor, purpose: str = "predict", weights: Weights | None = None) -> Tensor:
        """Return logits without gradient, of the network or under other weights of it."""
        with self._charged(purpose, "forward", images):
            features = self._known("features", images, purpose, weights)
            return _full(self._network.logits_of(features, weights))

    def query(self, images: Tensor, purpose: str, weights: Weights | None = None) -> Tensor:
        """Return class tokens without gradient, of the network or under other weights of it."""
        with self._charged(purpose, "forward", images):
            return self._known("query", images, purpose, weights)

    def reconstructions(self, images: Tensor, key: tuple[int | str, ...]) -> tuple[Tensor, Tensor]:
        """Return predicted patches and masks without gradient."""
        with self._charged("reconstruct", "reconstruct_forward", images):
            _, patches, mask = self._network.reconstruct(images, torch_generator(images.device, *key, "mask"))
        return _full(patches), mask

    def gradients(self, part: Part, loss: Callable[[Part, Tensor], Tensor]) -> dict[str, Tensor]:
        """Return the gradient in every weight of a loss of a part's logits."""
        self._ledger.charge("importance", "importance", len(part))
        return self._gradients(part, loss)

    def squared_gradients(self, part: Part, loss: Callable[[Part, Tensor], Tensor]) -> dict[str, Tensor]:
        """Return for every weight the sum over images of the squared gradient of the image's own loss."""
        self._ledger.charge("importance", "importance", len(part))
        sums = {name: torch.zeros_like(value) for name, value in self.weights().items()}
        for i in range(len(part)):
            for name, gradient in self._gradients(part.take(slice(i, i + 1)), loss).items():
                sums[name] += gradient.square()
        return sums

    def weights(self, live: bool = True) -> dict[str, Tensor]:
        """Return the weights of encoder and head by name: live ones have a gradient, others are detached."""
        found = {name: value for name, value in self._network.named_parameters() if not name.startswith("decoder.")}
        return {name: value if live else value.detach() for name, value in found.items() if value.requires_grad}

    def copy(self) -> dict[str, Tensor]:
        """Return a copy of the weights of encoder and head, as for a teacher."""
        return {name: value.clone() for name, value in self.weights(live=False).items()}

    def blend(self, anchor: Weights, share: float) -> None:
        """Interpolate the named weights: the anchor at share 0, their present values at share 1."""
        current = self.weights(live=False)
        for name, start in anchor.items():
            current[name].copy_(torch.lerp(start, current[name], share))

    def reset(self, step: TimeStep) -> None:
        """Restore the initial weights of the run, and initialize the head again."""
        head = self._network.head
        head.forget()
        head.grow(step.seen_classes, torch_generator("cpu", self._seed, step.t, "head"))
        initial = {name: value for name, value in self._initial().items() if not name.startswith("head.")}
        self._network.load_state_dict(initial, strict=False)

    def build(self, make: Callable[[], nn.Module], name: str) -> nn.Module:
        """Build a module of the method, its initial weights drawn by the seed and the name; `run` runs it."""
        with seeded(self._seed, "module", name):
            module = make()
        self._guard(module)
        return module.to(self.device)

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return self._network.head.weight.device

    def charge(self, purpose: str, flops: float) -> None:
        """Charge for work outside of modules, such as a matrix product in a loss."""
        self._ledger.charge_flops(purpose, "module", flops)

    def pay(self, purpose: str, flops: float) -> bool:
        """Charge for optional work, such as a closed-form solve; returns False if it exceeds the budget."""
        with suppress(Overdraft):
            self._ledger.charge_flops(purpose, "solve", flops)
            return True
        return False

    @contextmanager
    def _charged(
        self, purpose: str, without: Operation, rows: Tensor, with_grad: Operation | None = None, prompts: int = 0
    ) -> Iterator[None]:
        """Charge for a run and allow it, with gradient if `with_grad` is given and torch records gradients."""
        operation = with_grad if with_grad and torch.is_grad_enabled() else without
        has_grad = operation == with_grad
        if has_grad and self._ledger.is_free:
            raise Unmetered("evaluation is free and must not compute gradients; leave torch's gradients off in predict")
        self._ledger.charge(purpose, operation, len(rows), prompts=prompts)
        with self._running(), torch.set_grad_enabled(has_grad):
            yield

    def _known(self, view: View, images: Tensor, purpose: str, weights: Weights | None) -> Tensor:
        """Return features or queries without gradient; those of lazy images as far as they are known.

        They were charged for as if they were computed: the cache saves time, and nothing in the books.
        """
        compute = self._network.features if view == "features" else self._network.query
        if not isinstance(images, LazyImages) or images.known.view != view or weights or self._lookup is None:
            return _full(compute(images, weights))
        known = images.known
        if not known.is_known.all():  # when it was looked up, ahead; by now more may be
            known = self._lookup.keys(known.keys)
        values = torch.from_numpy(known.values).to(self.device)
        if len(new := np.flatnonzero(~known.is_known)):
            values[new] = computed = to_half(compute(images.some(new)))
            self._lookup.keep(images.known.keys[new], computed)  # after they were read, which tells unreadable ones
        if count := int(known.is_known.sum()):
            self._ledger.charge_flops(purpose, "read", 0.0, count)
        return values.float()

    def _gradients(self, part: Part, loss: Callable[[Part, Tensor], Tensor]) -> dict[str, Tensor]:
        weights = self.weights()
        with torch.enable_grad():
            with self._running():
                logits = _full(self._network.logits_of(self._network.features(part.images)))
            found = torch.autograd.grad(loss(part, logits), list(weights.values()), materialize_grads=True)
        return dict(zip(weights, found, strict=True))

    def _flops_of(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> int:
        """Return the FLOPs of a module for one image, counted once per shape on the meta device."""
        values = (*inputs, *module.parameters())
        backward = torch.is_grad_enabled() and any(value.requires_grad for value in values)
        key = (backward, *((value.shape[1:], value.requires_grad) for value in values))
        known = self._module_flops.setdefault(module, {})
        if key not in known:
            state = {name: torch.empty_like(value, device="meta") for name, value in module.state_dict().items()}
            for name, value in module.named_parameters():
                state[name].requires_grad_(value.requires_grad)
            rows = tuple(v.new_empty(1, *v.shape[1:], device="meta", requires_grad=v.requires_grad) for v in inputs)

            def run() -> Tensor:
                output = functional_call(module, state, rows)
                outputs = output if isinstance(output, tuple) else (output,)
                return torch.stack([value.sum() for value in outputs])

            with self._running():
                known[key] = count_flops(run, backward)
        return known[key]

    def _guard(self, module: nn.Module) -> None:
        """Let no module with weights run without a charge."""
        self._guarded.update(part for part in module.modules() if list(part.parameters(recurse=False)))
        self._lock()

    def _lock(self) -> None:
        self._unlock()
        self._locks = [module.register_forward_pre_hook(_refuse_unpaid) for module in self._guarded]

    def _unlock(self) -> None:
        while self._locks:
            self._locks.pop().remove()

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Allow the guarded modules to run; a hook that asks each time would slow every one of them down."""
        self._unlock()
        try:
            with torch.autocast(self.device.type, self._precision, enabled=self._precision != torch.float32):
                yield
        finally:
            self._lock()


def _refuse_unpaid(module: nn.Module, inputs: Any) -> None:
    raise Unmetered(f"{type(module).__name__} was run without a charge; call it through net")


def _full(values: Tensor) -> Tensor:
    """Return values in the precision that losses are computed in."""
    return values.float() if values.dtype == torch.bfloat16 else values
