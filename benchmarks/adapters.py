"""Adapters, the last layers or the head alone against full training, ViT-S/16 at 224 px: time, memory, FLOPs."""

import json
import statistics
import subprocess
import sys

from benchmarks.figure import Figure

ENCODER, MICRO_BATCH = "vit_small_patch16_224", 16
PARTS = ("full", "lora", "last-2", "head")
_CODE = """
import json, resource, sys, time
import torch
from torch import nn
from dietcl.config import Training
from dietcl.config_builder import build_config
from dietcl.engine.optimizer import build_optimizer
from dietcl.models.flops import cost_model
from dietcl.models.network import build_network

part, batch, updates = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
config = build_config("glyphs", "er", encoder={encoder!r}, weights="random", train=part).model
network = build_network(config, 0)
network.head.grow(100, torch.Generator())
network.decoder = None
images, labels = torch.randn(batch, 3, config.image_size, config.image_size), torch.randint(0, 100, (batch,))
optimizer = build_optimizer(network, {{}}, Training())
before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
for _ in range(updates + 1):
    started = time.process_time()
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(network.logits_of(network.features(images)), labels).backward()
    optimizer.step()
    seconds.append((time.process_time() - started) / batch)
cost = cost_model(config)
print(json.dumps({{
    "seconds": min(seconds[1:]),
    "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
    "passes": cost.train_flops(100) / cost.pass_flops(100),
    "learned": sum(p.numel() for p in network.parameters() if p.requires_grad),
}}))
"""


def run(quick: bool) -> list[Figure]:
    """Train each part in a process of its own, in turn, and compare with full training round by round."""
    rounds, updates = (2, 2) if quick else (5, 4)
    found: dict[str, list[dict[str, float]]] = {part: [] for part in PARTS}
    for _ in range(rounds):
        for part in PARTS:
            found[part].append(_measure(part, updates))
    figures = []
    for part in PARTS:
        for key, name, unit in (("seconds", "processor time of an image", "s"), ("megabytes", "memory it adds", "MB")):
            figures.append(Figure(f"--train {part}: {name}", statistics.median(r[key] for r in found[part]), unit))
        figures.append(Figure(f"--train {part}: charged for an image", found[part][0]["passes"], "passes"))
        figures.append(Figure(f"--train {part}: weights that learn", found[part][0]["learned"], "numbers"))
    for part in PARTS[1:]:
        for key, name in (("seconds", "time"), ("megabytes", "memory")):
            pairs = zip(found[part], found["full"], strict=True)
            ratio = statistics.median(one[key] / full[key] for one, full in pairs)
            bar = 1.0 if key == "seconds" else None  # activations take most of the memory, whatever learns
            figures.append(Figure(f"--train {part}: {name} over full training", ratio, "x", at_most=bar))
    return figures


def _measure(part: str, updates: int) -> dict[str, float]:
    command = [sys.executable, "-c", _CODE.format(encoder=ENCODER), part, str(MICRO_BATCH), str(updates)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured
