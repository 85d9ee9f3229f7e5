"""What a learner's checkpoint holds: weights, moments, the method's state, counts, the ledger and the position."""

from typing import Any

import torch
from torch import Tensor

from dietcl.engine.checkpoint_files import Checkpoints, Saved
from dietcl.engine.learner import Learner
from dietcl.engine.optimizer import build_optimizer
from dietcl.engine.resume_position import Position
from dietcl.errors import NotFinite, UserError, reason

ADVICE = "lower --lr or --head-lr; the last checkpoint is kept"


def require_finite(learner: Learner) -> None:
    """Refuse weights that are not finite, which a finite loss may still lead to."""
    if not all(bool(p.isfinite().all()) for p in learner.network.parameters()):
        finished, position = learner.position.finished, learner.position.step
        where = f"after time step {finished}"
        if position is not None and position.segment is not None:
            where = f"at time step {finished + 1}, phase {position.segment.name}, after update {position.made - 1}"
        raise NotFinite(f"a weight is not finite {where}; {ADVICE}")


def save_state(learner: Learner, checkpoints: Checkpoints, event_log: int) -> None:
    """Write a checkpoint of a learner whose event_log has so many bytes."""
    require_finite(learner)
    tensors = weights_of(learner)
    for number, optimizer in enumerate(learner.optimizers.values()):
        for parameter, entry in optimizer.state_dict()["state"].items():
            tensors |= {f"moments/{number}/{parameter}/{name}": value for name, value in entry.items()}
    for part in ("counts", "class_counts"):
        tensors |= {f"{part}/{name}": torch.from_numpy(values) for name, values in vars(getattr(learner, part)).items()}
    notes = {
        "position": learner.position.state(),
        "ledger": learner.ledger.state(),
        "turns": list(learner.optimizers),
        "event_log": event_log,
    }
    checkpoints.save(tensors, learner.method.state(), notes)


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """Return the weights of the network and of the method's modules by names that tell them apart."""
    weights = {f"network/{name}": value for name, value in learner.network.state_dict().items()}
    for module_name, module in learner.method.modules().items():
        weights |= {f"modules/{module_name}/{key}": value for key, value in module.state_dict().items()}
    return weights


def restore_state(learner: Learner, saved: Saved) -> int:
    """Bring a learner to a saved state; returns how many bytes its event_log had."""
    try:
        _restore(learner, saved)
        event_log = saved.notes["event_log"]
        if not isinstance(event_log, int):
            raise TypeError(f"{event_log!r} is no length of a event_log")
    except torch.OutOfMemoryError:
        raise  # no fault of the checkpoint
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise UserError(
            f"{saved.path}: is whole but does not fit this run ({reason(error)}); start over with --fresh"
        ) from None
    return event_log


def _restore(learner: Learner, saved: Saved) -> None:
    parts = _by_part(saved.tensors, learner.device)
    learner.network.head.grow(len(parts["network"]["head.bias"]), torch.Generator())
    learner.network.load_state_dict(parts["network"])
    # First the state, because a method may need it to make its modules.
    learner.method.load_state({name: value.to(learner.device) for name, value in saved.rare.items()})
    for name, module in learner.method.modules().items():
        module.load_state_dict(_below(parts["modules"], name))
    for part in ("counts", "class_counts"):  # checkpoints of version 0.1 have no counts by class
        for name, values in parts[part].items():
            setattr(getattr(learner, part), name, values.cpu().numpy())
    learner.ledger.load_state(saved.notes["ledger"])
    learner.position = Position.from_state(saved.notes["position"])
    learner.optimizers.clear()
    for number, turn in enumerate(saved.notes["turns"]):
        optimizer = build_optimizer(learner.network, learner.method.modules(), learner.config.training)
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _below(parts["moments"], str(number)).items():
            parameter, _, field = name.partition("/")
            state.setdefault(int(parameter), {})[field] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
        learner.optimizers[turn] = optimizer


def _by_part(tensors: dict[str, Tensor], device: torch.device) -> dict[str, dict[str, Tensor]]:
    """Sort tensors by the first word of their names."""
    parts: dict[str, dict[str, Tensor]] = {
        "network": {},
        "modules": {},
        "moments": {},
        "counts": {},
        "class_counts": {},
    }
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value.to(device) if "counts" not in part else value
    return parts


def _below(tensors: dict[str, Tensor], name: str) -> dict[str, Any]:
    prefix = f"{name}/"
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
