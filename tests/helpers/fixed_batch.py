"""A fixed batch in double precision, and the comparison of a method's losses and gradients with plain ones."""

import zlib

import pytest
import torch

from dietcl.methods.base import Phase
from dietcl.streams.batch import Batch, Part
from dietcl.streams.options import Mix
from helpers.tiny import tiny_config, tiny_learner

KEY = (7, 2, 0, 0, 0)
CLASSES, CURRENT = 5, [1, 3, 4]


def part(pool, labels, seed, smoothing=0.1):
    """Return a part of random images whose views are the images with noise added."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(len(labels), 3, 16, 16, generator=generator, dtype=torch.float64) * 4 - 2

    def view(name, strong):
        noise = torch.Generator().manual_seed(zlib.crc32(f"{seed}{name}{strong}".encode()))
        return images + 0.3 * torch.randn(images.shape, generator=noise, dtype=torch.float64)

    rows = torch.arange(len(labels)) + 100 * seed
    if pool == "unlabeled":
        return Part(pool, images, rows=rows, view_maker=view)
    labels = torch.tensor(labels)
    weight = torch.rand(len(labels), generator=generator, dtype=torch.float64)
    return Part(pool, images, labels, labels.flip(0), weight, smoothing, rows, view)


def fixed_batch(**without):
    """Return a batch of four labeled, five remembered and three unlabeled images; parts can be left out with None."""
    parts = {
        "labeled": part("labeled", [1, 3, 3, 4], 1),
        "memory": part("memory", [0, 2, 4, 1, 1], 2),
        "unlabeled": part("unlabeled", [0, 0, 0], 3),
    }
    return Batch(**{**parts, **without}, classes=torch.tensor(CURRENT), key=KEY)


def fixed_learner(manifest, method, **options):
    """Return a learner in double precision amid time step 2, with five classes and no update made."""
    learner = tiny_learner(tiny_config(manifest, method, budget="100", **options))
    learner.network.head.grow(CLASSES, torch.Generator().manual_seed(0))
    learner.network.double()
    for module in learner.method.modules().values():
        module.double()
    learner.ledger.open(2, CLASSES)
    return learner


def leaves(learner):
    """Return every trainable weight by name, the method's own modules' as `module NAME.KEY`."""
    named = dict(learner.network.named_parameters())
    for name, module in learner.method.modules().items():
        named |= {f"module {name}.{key}": value for key, value in module.named_parameters()}
    return named


def nudge(learner, seed=0):
    """Move every weight a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in leaves(learner).values():
            value += 0.02 * torch.randn(value.shape, generator=generator, dtype=value.dtype)


def losses_of(learner, batch, phase="joint"):
    """Return the terms of a batch by name."""
    return {term.name: term for term in learner.method.losses(learner.net, Phase(name=phase, mix=Mix()), batch)}


def compare(learner, batch, expected, phase="joint"):
    """Compare terms by name, and the gradient of their weighted sum in every weight; returns the terms.

    `expected` has for each term its weight and a function from weights by name (see `leaves`) to its value.
    """
    terms = losses_of(learner, batch, phase)
    weights = {name: value.detach().clone() for name, value in learner.network.state_dict().items()}
    weights |= {name: value.detach().clone() for name, value in leaves(learner).items()}
    for name in leaves(learner):
        weights[name].requires_grad_()
    wanted = {name: (weight, loss(weights)) for name, (weight, loss) in expected.items()}
    assert terms.keys() == wanted.keys()
    for name, (weight, value) in wanted.items():
        assert terms[name].weight == weight
        assert terms[name].value.item() == pytest.approx(value.item(), abs=1e-6)
    sum(term.weight * term.value for term in terms.values()).backward()
    sum(weight * value for weight, value in wanted.values()).backward()
    total = 0.0
    for name, parameter in leaves(learner).items():
        gradient = weights[name].grad
        if gradient is None or not gradient.abs().sum():
            assert parameter.grad is None or not parameter.grad.abs().sum(), name
            continue
        scale = max(1.0, float(gradient.abs().max()))
        assert float((parameter.grad - gradient).abs().max()) <= 1e-6 * scale, name
        total += float(gradient.abs().sum())
    assert total > 0
    return terms
