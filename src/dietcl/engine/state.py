"""What a learner's checkpoint holds: weights, moments, the method's state, counts, the ledger and the position."""

import torch
from torch import Tensor

from dietcl.engine.checkpoint_files import Checkpoints, Saved, below
from dietcl.engine.learner import Learner
from dietcl.engine.optimizer import build_optimizer, load_moments, moments_of
from dietcl.engine.resume_position import Position
from dietcl.errors import NotFinite, UserError, reason

ADVICE = "lower --lr or --head-lr; the last checkpoint is kept"


def require_finite(learner: Learner) -> None:
    """Raise if a weight is not finite, which can happen although the loss is finite."""
    if not all(bool(p.isfinite().all()) for p in learner.network.parameters()):
        finished, step = learner.position.finished, learner.position.step
        where = f"after time step {finished}"
        if step is not None and step.segment is not None:
            where = f"at time step {finished + 1}, phase {step.segment.name}, after update {step.made - 1}"
        raise NotFinite(f"a weight is not finite {where}; {ADVICE}")


def save_state(learner: Learner, checkpoints: Checkpoints, event_log: int) -> None:
    """Write a checkpoint of a learner; `event_log` is the length of its event log in bytes."""
    require_finite(learner)
    tensors = weights_of(learner)
    for number, optimizer in enumerate(learner.optimizers.values()):
        tensors |= moments_of(optimizer, f"moments/{number}")
    for part in ("counts", "class_counts"):
        tensors |= {f"{part}/{name}": torch.from_numpy(values) for name, values in vars(getattr(learner, part)).items()}
    notes = {"turns": list(learner.optimizers), "event_log": event_log}
    states = {"position": learner.position.state(), "ledger": learner.ledger.state()}
    checkpoints.save(tensors, learner.method.state(), {**states, **notes})


def weights_of(learner: Learner) -> dict[str, Tensor]:
    """Return the weights of the network and of the method's modules by unique names."""
    weights = {f"network/{name}": value for name, value in learner.network.state_dict().items()}
    for module_name, module in learner.method.modules().items():
        weights |= {f"modules/{module_name}/{key}": value for key, value in module.state_dict().items()}
    return weights


def restore_state(learner: Learner, saved: Saved) -> int:
    """Bring a learner to a saved state; returns how many bytes its event log had."""
    tensors, method = saved.tensors, learner.method
    try:
        weights = below(tensors, "network/")
        learner.network.head.grow(len(weights["head.bias"]), torch.Generator())
        learner.network.load_state_dict(weights)
        # First the state, because a method may need it to build its modules.
        method.load_state({name: value.to(learner.device) for name, value in saved.rare.items()})
        for name, module in method.modules().items():
            module.load_state_dict(below(tensors, f"modules/{name}/"))
        for part in ("counts", "class_counts"):  # checkpoints of version 0.1 have no counts by class
            for name, values in below(tensors, f"{part}/").items():
                setattr(getattr(learner, part), name, values.numpy())
        learner.ledger.load_state(saved.notes["ledger"])
        learner.position = Position.from_state(saved.notes["position"])
        learner.optimizers.clear()
        for number, turn in enumerate(saved.notes["turns"]):
            optimizer = build_optimizer(learner.network, method.modules(), learner.config.training)
            load_moments(optimizer, below(tensors, f"moments/{number}/"))
            learner.optimizers[turn] = optimizer
        return int(saved.notes["event_log"])
    except torch.OutOfMemoryError:
        raise  # the checkpoint is fine
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        why = f"is complete but does not fit this run ({reason(error)})"
        raise UserError(f"{saved.path}: {why}; start over with --fresh") from None
