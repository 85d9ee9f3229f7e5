"""The metered network: the only way to run the network, charging the ledger before every run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dietcl.budget.cost import Operation
from dietcl.budget.ledger import Ledger, Overdraft
from dietcl.models.flops import count_flops
from dietcl.models.network import Network, Weights
from dietcl.rng import seeded, torch_generator
from dietcl.streams.batch import Part
from dietcl.streams.stream import TimeStep


class Unmetered(RuntimeError):
    """The network was run without a charge to the budget."""


class Net:
    """What a method sees of the network; every call is charged before it computes.

    Calls "with gradient" are charged and run without one where torch records none, as in `predict`.
    """

    def __init__(
        self,
        network: Network,
        ledger: Ledger,
        seed: int,
        initial: Callable[[], Weights],
        notify: Callable[[str], None],
        precision: torch.dtype = torch.float32,
    ) -> None:
        self._network = network
        self._ledger = ledger
        self._seed = seed
        self._initial = initial
        self.notify = notify
        """Shows the user a sentence."""
        self._precision = precision
        self._paid = False
        self._module_flops: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], int]] = WeakKeyDictionary()
        self._guard(network)

    @property
    def classes(self) -> int:
        """Number of classes revealed so far."""
        return self._network.head.classes

    @property
    def dim(self) -> int:
        """Number of features of an image."""
        return self._network.encoder.dim

    @property
    def grid(self) -> tuple[int, int]:
        """Patches along one side of an image, and pixels along one side of a patch."""
        return self._network.encoder.grid, self._network.encoder.patch

    def relative_flops(self, operation: Operation) -> float:
        """Return the FLOPs of an operation for one image over those of a pass."""
        cost = self._ledger.cost
        return cost.flops(operation, self.classes) / cost.pass_flops(self.classes)

    # Runs with gradient.

    def logits(self, *parts: Part) -> list[Tensor]:
        """Return each part's logits with gradient, computed in one forward."""
        if not parts:
            return []
        self._ledger.require("train", sum(len(part) for part in parts))
        for part in parts:
            self._ledger.charge(part.pool, "train", len(part))
        with self._running():
            features = self._network.features(torch.cat([part.images for part in parts]))
            logits = _full(self._network.logits_of(features))
        return list(logits.split([len(part) for part in parts]))

    def encode(self, images: Tensor, purpose: str) -> Tensor:
        """Return features with gradient, at the price of logits."""
        self._charge(purpose, "train", "forward", images)
        with self._running():
            return _full(self._network.features(images))

    def classify(self, features: Tensor, purpose: str) -> Tensor:
        """Return the logits of given features with gradient; `encode` does not pay for this head."""
        self._charge(purpose, "head_train", "head_forward", features)
        with self._running():
            return _full(self._network.logits_of(features))

    def stages(self, images: Tensor, count: int, purpose: str) -> list[Tensor]:
        """Return maps of features [B, dim, grid, grid] with gradient from `count` depths of the encoder."""
        self._charge(purpose, "train", "forward", images)
        with self._running():
            return [_full(stage) for stage in self._network.stages(images, count)]

    def prompted(self, images: Tensor, prompts_BPD: Tensor, purpose: str, frozen: bool) -> Tensor:
        """Return the mean output token of the prompts, with gradient: for the prompts alone if frozen."""
        number = prompts_BPD.shape[1]
        self._charge(purpose, "prompt" if frozen else "prompt_train", "prompt_forward", images, number)
        weights = self.weights(live=False) if frozen else None
        with self._running():
            return _full(self._network.prompted(images, prompts_BPD, weights))

    def reconstruct(self, part: Part, key: tuple[int | str, ...]) -> Tensor:
        """Return the mean reconstruction loss with gradient, under masks drawn by the key."""
        self._ledger.charge("reconstruct", "reconstruct", len(part))
        with self._running():
            generator = torch_generator(part.images.device, *key, "mask")
            losses, _, _ = self._network.reconstruct(part.images, generator)
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

    # Runs without gradient.

    def features(self, images: Tensor, purpose: str, weights: Weights | None = None) -> Tensor:
        """Return features without gradient, of the network or under other weights of it."""
        self._ledger.charge(purpose, "forward", len(images))
        with self._running(), torch.no_grad():
            return _full(self._network.features(images, weights))

    def scores(self, images: Tensor, purpose: str = "predict", weights: Weights | None = None) -> Tensor:
        """Return logits without gradient, of the network or under other weights of it."""
        self._ledger.charge(purpose, "forward", len(images))
        with self._running(), torch.no_grad():
            return _full(self._network.logits_of(self._network.features(images, weights), weights))

    def query(self, images: Tensor, purpose: str, weights: Weights | None = None) -> Tensor:
        """Return class tokens without gradient, of the network or under other weights of it."""
        self._ledger.charge(purpose, "forward", len(images))
        with self._running(), torch.no_grad():
            return _full(self._network.query(images, weights))

    def reconstructions(self, images: Tensor, key: tuple[int | str, ...]) -> tuple[Tensor, Tensor]:
        """Return predicted patches and masks without gradient."""
        self._ledger.charge("reconstruct", "reconstruct_forward", len(images))
        with self._running(), torch.no_grad():
            _, patches, mask = self._network.reconstruct(images, torch_generator(images.device, *key, "mask"))
        return _full(patches), mask

    # Gradients as a measure of importance.

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

    # Weights.

    def weights(self, live: bool = True) -> dict[str, Tensor]:
        """Return the weights of encoder and head by name: live ones have a gradient, others are detached."""
        return {
            name: value if live else value.detach()
            for name, value in self._network.named_parameters()
            if value.requires_grad and not name.startswith("decoder.")
        }

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

    # Charges.

    def charge(self, purpose: str, flops: float) -> None:
        """Charge for work outside of modules, such as a matrix product in a loss."""
        self._ledger.charge_flops(purpose, "module", flops)

    def pay(self, purpose: str, flops: float) -> bool:
        """Charge for optional work, such as a closed-form solve; returns False if it exceeds the budget."""
        try:
            self._ledger.charge_flops(purpose, "solve", flops)
        except Overdraft:
            return False
        return True

    def _charge(self, purpose: str, with_grad: Operation, without: Operation, images: Tensor, prompts: int = 0) -> None:
        if torch.is_grad_enabled() and self._ledger.is_free:
            raise Unmetered("evaluation is free and must not compute gradients; leave torch's gradients off in predict")
        operation = with_grad if torch.is_grad_enabled() else without
        self._ledger.charge(purpose, operation, len(images), prompts=prompts)

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
            rows = tuple(
                torch.empty(1, *value.shape[1:], device="meta", dtype=value.dtype, requires_grad=value.requires_grad)
                for value in inputs
            )

            def run() -> Tensor:
                output = functional_call(module, state, rows)
                outputs = output if isinstance(output, tuple) else (output,)
                return torch.stack([value.sum() for value in outputs])

            with self._running():
                known[key] = count_flops(run, backward)
        return known[key]

    def _guard(self, module: nn.Module) -> None:
        for part in module.modules():
            # Every module with weights is guarded, so that no part of the network runs without a charge.
            if any(True for _ in part.parameters(recurse=False)):
                part.register_forward_pre_hook(self._refuse_unpaid)

    @contextmanager
    def _running(self) -> Iterator[None]:
        self._paid = True
        try:
            with torch.autocast(self.device.type, self._precision, enabled=self._precision != torch.float32):
                yield
        finally:
            self._paid = False

    def _refuse_unpaid(self, module: nn.Module, inputs: Any) -> None:
        if not self._paid:
            raise Unmetered(f"{type(module).__name__} was run without a charge; call it through net")


def _full(values: Tensor) -> Tensor:
    """Return values in the precision that losses are computed in."""
    return values.float() if values.dtype == torch.bfloat16 else values
