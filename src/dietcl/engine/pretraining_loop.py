"""Masked pre-training of encoder and decoder on any image set, resumable after any checkpoint."""

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from dietcl.budget.budget import Budget
from dietcl.budget.ledger import Ledger
from dietcl.checked_options import plain_values
from dietcl.config import Pretraining
from dietcl.engine.checkpoint_files import CHECKPOINTS, Checkpoints, below
from dietcl.engine.distributed import World
from dietcl.engine.event_log import EventLog
from dietcl.engine.optimizer import load_moments, moments_of
from dietcl.engine.sample_pictures import reconstruction_pictures
from dietcl.errors import Stopped, UserError, reason
from dietcl.files import disk_errors, locked, make_folder, read_config, write_arrays, write_json
from dietcl.models.flops import cost_model
from dietcl.models.net import Net
from dietcl.models.network import Network, build_network
from dietcl.models.presets import ModelConfig
from dietcl.signals import listening
from dietcl.streams.augment import crop_and_flip
from dietcl.streams.batch import Part
from dietcl.streams.index import Index
from dietcl.streams.loader import Loader
from dietcl.streams.options import BAD_SHARE, Augmentation, Mix, Recipe
from dietcl.streams.sampler import pools_of, sample
from dietcl.streams.storage import Storage
from dietcl.streams.stream import Stream
from dietcl.streams.stream_cache import cached_stream

LOG_EVERY = 20
KEPT = 2  # checkpoints
_ADVICE = "lower it and choose another --out"


def pretrain(
    model: ModelConfig,
    config: Pretraining,
    index: Index,
    folder: Path,
    device: torch.device,
    progress: Callable[[float, float], None],
    bad_share: float = BAD_SHARE,
    notify: Callable[[str], None] = lambda sentence: None,
) -> Network:
    """Pre-train in a folder, or go on after the last checkpoint in it; raises Stopped after a stop on request."""
    network = build_network(model, config.seed).to(device)
    if network.decoder is None:
        raise UserError(f"--encoder {model.encoder}: its patches cannot be masked; choose a vision transformer")
    stream = cached_stream("pretrain", index, Recipe(recipe="data", time_steps=1, label_rate=0), config.seed)
    ledger = Ledger(Budget(config.updates, "updates"), "images", config.batch, cost_model(model))
    ledger.open(1, 0)
    net = Net(network, ledger, config.seed, network.state_dict, notify)
    loader = Loader(stream, Storage(index, model.image_size, bad_share, resizing=model.resizing), device)
    # Only now: a run that cannot be started must not claim the folder.
    with locked(make_folder(folder), notify), disk_errors(folder):
        options = {"model": plain_values(model), "pretraining": asdict(config)}
        wanted = json.loads(json.dumps({**options, "manifest": index.hash}))
        if (read_config(folder) or wanted) != wanted:
            raise UserError(f"{folder}: holds a pre-training with other options; choose another --out")
        write_json(folder / "config.json", wanted)
        _learn(net, network, stream, loader, config, folder, progress, notify)
        pictures = reconstruction_pictures(network, net, ledger, loader, stream.steps[0].unlabeled, "pictures")
        write_arrays(folder / "samples.npz", pictures)
    return network


def _learn(
    net: Net,
    network: Network,
    stream: Stream,
    loader: Loader,
    config: Pretraining,
    folder: Path,
    progress: Callable[[float, float], None],
    notify: Callable[[str], None],
) -> None:
    """Run the remaining updates, saving on the way."""
    assert network.decoder is not None
    parameters = [*network.encoder.parameters(), *network.decoder.parameters()]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95))
    checkpoints = Checkpoints(folder / CHECKPOINTS, KEPT)
    done, event_log = _resume(network, optimizer, checkpoints, notify)
    events = EventLog(folder / "events.jsonl", keep=event_log)
    augmentation = Augmentation(crop=config.crop, flip=config.flip)
    pools = pools_of(stream, 1, Mix(unlabeled=1))
    draws = (sample(pools, {"unlabeled": config.batch}, (config.seed, update)) for update in itertools.count(done))
    batches = loader.iterate(draws, ahead=augmentation)
    started, world = time.perf_counter(), World()
    with listening(world, notify):
        for update in range(done, config.updates):
            (draw,), (images,) = next(batches)
            key = (config.seed, "pretrain", update)
            # Squares keep the key of earlier versions; pictures were cropped ahead, by the key of their draw.
            crop_key = key if isinstance(images, torch.Tensor) else (*draw.key, draw.pool)
            part = Part("unlabeled", crop_and_flip(images, augmentation, crop_key))
            lr = _learning_rate(config, update)
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.zero_grad(set_to_none=True)
            loss = net.reconstruct(part, key)
            loss.backward()  # type: ignore[no-untyped-call]
            value = float(loss.detach())
            if not math.isfinite(value):
                raise UserError(f"--lr {config.lr}: the loss is {value} at update {update}; {_ADVICE}")
            optimizer.step()
            is_last = update == config.updates - 1
            if update % LOG_EVERY == 0 or is_last:
                events.write("update", update=update, loss=value, lr=lr)
            progress((update + 1) / config.updates, value)
            if (update + 1) % config.checkpoint_every == 0 or is_last or world.is_stopping:
                if not all(bool(p.isfinite().all()) for p in network.parameters()):
                    raise UserError(f"--lr {config.lr}: a weight is not finite after update {update}; {_ADVICE}")
                tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
                tensors |= moments_of(optimizer, "moments")
                checkpoints.save(tensors, {}, {"done": update + 1, "event_log": events.sync()})
            if world.is_stopping and not is_last:
                raise Stopped(f"{folder}: saved; run the same command to resume")
    batches.close()
    seconds = time.perf_counter() - started
    events.write("end", seconds=seconds, data_wait=loader.waited, substituted=loader.substituted)


def _learning_rate(config: Pretraining, update: int) -> float:
    warmup = config.warmup * config.updates
    if update < warmup:
        return config.lr * (update + 1) / (warmup + 1)
    return config.lr * 0.5 * (1 + math.cos(math.pi * (update - warmup) / (config.updates - warmup)))


def _resume(
    network: Network, optimizer: torch.optim.AdamW, checkpoints: Checkpoints, notify: Callable[[str], None]
) -> tuple[int, int]:
    """Return how many updates were done and how long the event log was."""
    saved, damages = checkpoints.load()
    for sentence in damages:
        notify(sentence)
    if saved is None:
        return 0, 0
    try:
        network.load_state_dict(below(saved.tensors, "network/"))
        load_moments(optimizer, below(saved.tensors, "moments/"))
        return int(saved.notes["done"]), int(saved.notes["event_log"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        why = f"is complete but does not fit this run ({reason(error)})"
        raise UserError(f"{saved.path}: {why}; choose another --out") from None
