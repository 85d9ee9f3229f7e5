"""The losses once more, in plain torch on a dict of weights: vision transformer, soft targets, masked autoencoder,
Barlow Twins, DualNet's branch, MixMatch and triplets.

Weights are named as by `fixed_batch.leaves`: those of a method's own module `NAME` are `module NAME.KEY`.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from dietcl.rng import numpy_generator, torch_generator


def plain_block(x, weights, prefix, heads):
    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{prefix}.{name}.weight"], weights[f"{prefix}.{name}.bias"], 1e-6)

    def linear(x, name):
        return x @ weights[f"{prefix}.{name}.weight"].T + weights[f"{prefix}.{name}.bias"]

    dim = x.shape[-1]
    q, k, v = linear(norm(x, "norm1"), "attn.qkv").chunk(3, dim=-1)
    mixed = []
    for head in range(heads):
        part = slice(head * dim // heads, (head + 1) * dim // heads)
        scores = torch.einsum("bnd,bmd->bnm", q[..., part], k[..., part]) / math.sqrt(dim // heads)
        mixed.append(torch.einsum("bnm,bmd->bnd", scores.exp() / scores.exp().sum(-1, keepdim=True), v[..., part]))
    x = x + linear(torch.cat(mixed, -1), "attn.proj")
    hidden = linear(norm(x, "norm2"), "mlp.fc1")
    return x + linear(hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))), "mlp.fc2")


def plain_patches(images, patch=4):
    """Return [images, patches, rows, columns, channels], cut out one by one."""
    side = images.shape[-1] // patch
    cut = [
        images[:, :, patch * i : patch * (i + 1), patch * j : patch * (j + 1)] for i in range(side) for j in range(side)
    ]
    return torch.stack(cut, dim=1).permute(0, 1, 3, 4, 2)


def plain_stages(images, weights, keep=None):
    """Return the normed tokens after each of the four blocks."""
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    kernel = weights["encoder.vit.patch_embed.proj.weight"].flatten(1)
    tokens = patches @ kernel.T + weights["encoder.vit.patch_embed.proj.bias"] + weights["encoder.vit.pos_embed"][:, 1:]
    if keep is not None:
        tokens = torch.stack([tokens[i, kept] for i, kept in enumerate(keep)])
    first = (weights["encoder.vit.cls_token"] + weights["encoder.vit.pos_embed"][:, :1]).expand(len(images), -1, -1)
    x = torch.cat([first, tokens], dim=1)
    stages = []
    for block in range(4):
        x = plain_block(x, weights, f"encoder.vit.blocks.{block}", heads=3)
        stages.append(
            F.layer_norm(x, (96,), weights["encoder.vit.norm.weight"], weights["encoder.vit.norm.bias"], 1e-6)
        )
    return stages


def plain_encoder(images, weights, keep=None):
    return plain_stages(images, weights, keep)[-1]


def plain_features(images, weights):
    return plain_encoder(images, weights)[:, 1:].mean(1)


def plain_logits(images, weights):
    return plain_features(images, weights) @ weights["head.weight"].T + weights["head.bias"]


def plain_cross_entropy(logits, part, only=None):
    """Write every image's target distribution down and take its cross-entropy with the masked softmax."""
    allowed = list(range(logits.shape[1])) if only is None else only
    total = 0.0
    for i in range(len(part)):
        target = torch.zeros(logits.shape[1], dtype=logits.dtype)
        share = float(part.weight[i])
        target[part.labels[i]] += (1 - part.smoothing) * share
        target[part.partners[i]] += (1 - part.smoothing) * (1 - share)
        target[allowed] += part.smoothing / len(allowed)
        assert float(target.sum()) == pytest.approx(1)
        assert float(target[allowed].sum()) == pytest.approx(1)
        closed = torch.full_like(logits[i], -math.inf)
        closed[allowed] = logits[i][allowed]
        p = closed.exp() / closed.exp().sum()
        total = total - sum(target[c] * p[c].log() for c in allowed)
    return total / len(part)


def plain_reconstruction(images, weights, key):
    noise = torch.rand(len(images), 16, generator=torch_generator("cpu", *key, "mask"))
    keep = noise.argsort(1)[:, :4]
    visible = plain_encoder(images, weights, keep)
    visible = visible @ weights["decoder.embed.weight"].T + weights["decoder.embed.bias"]
    total = 0.0
    for i, kept in enumerate(keep.tolist()):
        tokens = [
            visible[i, 1 + kept.index(p)] if p in kept else weights["decoder.mask_token"][0, 0] for p in range(16)
        ]
        x = torch.stack([visible[i, 0], *tokens])[None] + weights["decoder.pos_embed"]
        x = plain_block(x, weights, "decoder.blocks.0", heads=2)
        x = F.layer_norm(x, (16,), weights["decoder.norm.weight"], weights["decoder.norm.bias"], 1e-6)
        predicted = (x @ weights["decoder.pred.weight"].T + weights["decoder.pred.bias"])[0, 1:]
        targets = plain_patches(images[i : i + 1])[0].flatten(1)
        hidden = [p for p in range(16) if p not in kept]
        for p in hidden:
            values = targets[p]
            mean = values.sum() / 48
            variance = ((values - mean) ** 2).sum() / 47
            wanted = (values - mean) / (variance + 1e-6).sqrt()
            total = total + ((predicted[p] - wanted) ** 2).sum() / 48 / len(hidden)
    return total / len(images)


# Barlow Twins.


def plain_perceptron(x, weights, name, layers):
    """Run a module whose layers are a matrix, a norm and a rectifier each, the last one a matrix alone."""
    for layer in range(layers):
        x = x @ weights[f"module {name}.{3 * layer}.weight"].T + weights[f"module {name}.{3 * layer}.bias"]
        if layer < layers - 1:
            mean = x.sum(1, keepdim=True) / x.shape[1]
            variance = ((x - mean) ** 2).sum(1, keepdim=True) / x.shape[1]
            norm = f"module {name}.{3 * layer + 1}"
            x = (x - mean) / (variance + 1e-5).sqrt() * weights[f"{norm}.weight"] + weights[f"{norm}.bias"]
            x = x * (x > 0)
    return x


def plain_projections(parts, name, weights):
    """Return the projections of the strong views of this name, part after part."""
    images = torch.cat([part.view(name, True) for part in parts])
    return plain_perceptron(plain_features(images, weights), weights, "projector", 3)


def plain_barlow(one, two, off_diagonal, scale):
    """Fill the matrix of correlations entry by entry."""
    number, width = one.shape

    def standard(x):
        mean = x.sum(0) / number
        return (x - mean) / (((x - mean) ** 2).sum(0) / number + 1e-5).sqrt()

    one, two = standard(one), standard(two)
    total = 0.0
    for i in range(width):
        for j in range(width):
            correlation = (one[:, i] * two[:, j]).sum() / number
            total = total + ((1 - correlation) ** 2 if i == j else off_diagonal * correlation**2)
    return scale * total


def plain_views(parts, weights, off_diagonal, scale):
    one, two = (plain_projections(parts, name, weights) for name in ("one", "two"))
    return plain_barlow(one, two, off_diagonal, scale)


# DualNet.


def plain_branch(images, maps, weights):
    """Run the fast branch by shifting maps about."""
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    tokens = patches @ weights["module branch.stem.weight"].flatten(1).T + weights["module branch.stem.bias"]
    fast = tokens.unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    for number, slow in enumerate(maps):
        stage = f"module branch.stages.{number}"
        fast = fast * (fast > 0)
        framed = torch.zeros(*fast.shape[:2], 6, 6, dtype=fast.dtype)
        framed[:, :, 1:5, 1:5] = fast
        kernel = weights[f"{stage}.0.weight"]
        mixed = sum(
            torch.einsum("oi,bihw->bohw", kernel[:, :, i, j], framed[:, :, i : i + 4, j : j + 4])
            for i in range(3)
            for j in range(3)
        )
        mixed = mixed + weights[f"{stage}.0.bias"][:, None, None]
        across = torch.einsum("oi,bihw->bohw", weights[f"{stage}.1.weight"][:, :, 0, 0], mixed)
        fast = slow * (1 + across + weights[f"{stage}.1.bias"][:, None, None])
    return fast.sum((2, 3)) / 16


def plain_dual_logits(images, weights):
    maps = [tokens[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2) for tokens in plain_stages(images, weights)]
    return plain_branch(images, maps, weights) @ weights["head.weight"].T + weights["head.bias"]


def plain_divergence(logits, targets, temperature):
    """Compare a list of stored logits, of a length of their own each, with as many of the logits."""
    terms = []
    for row, target in zip(logits, targets, strict=True):
        if target is None:
            continue
        q = [math.exp(value / temperature) for value in target]
        p = [(value / temperature).exp() for value in row[: len(target)]]
        for one, other in zip(q, p, strict=True):
            terms.append(one / sum(q) * (math.log(one / sum(q)) - (other / sum(p)).log()))
    return sum(terms) / len(terms)


# MixMatch and triplets.


def plain_guess(unlabeled, weights, augmentations, temperature):
    """Return one guess per image: the mean softmax of its views, sharpened."""
    guesses = []
    for image in range(len(unlabeled)):
        mean = 0.0
        for view in range(augmentations):
            logits = plain_logits(unlabeled.view(f"guess {view}")[image : image + 1], weights)[0].detach()
            mean = mean + logits.exp() / logits.exp().sum() / augmentations
        powers = mean ** (1 / temperature)
        guesses.append(powers / powers.sum())
    return guesses


def plain_mixmatch(batch, weights, augmentations=3, temperature=0.5, beta=0.75):
    """Return mixed images and targets as lists by pool, image by image."""
    classes = len(weights["head.bias"])
    pools, images, targets = [], [], []
    for drawn in (batch.labeled, batch.memory):
        if drawn is not None:
            for image, label in zip(drawn.view("mixmatch"), drawn.labels.tolist(), strict=True):
                target = torch.full((classes,), drawn.smoothing / classes, dtype=torch.float64)
                target[label] += 1 - drawn.smoothing
                pools.append(drawn.pool)
                images.append(image)
                targets.append(target)
    if batch.unlabeled is not None:
        guesses = plain_guess(batch.unlabeled, weights, augmentations, temperature)
        for view in range(augmentations):
            for image, target in zip(batch.unlabeled.view(f"guess {view}"), guesses, strict=True):
                pools.append("unlabeled")
                images.append(image)
                targets.append(target)
    generator = numpy_generator(*batch.key, "mixmatch")
    partners = generator.permutation(len(images)) if beta else range(len(images))
    shares = generator.beta(beta, beta, len(images)) if beta else [1.0] * len(images)
    mixed = {pool: ([], []) for pool in pools}
    for i, (j, share) in enumerate(zip(partners, shares, strict=True)):
        share = max(share, 1 - share)
        mixed[pools[i]][0].append(share * images[i] + (1 - share) * images[j])
        mixed[pools[i]][1].append(share * targets[i] + (1 - share) * targets[j])
    return mixed


def plain_embeddings(parts, name, weights):
    features = plain_features(torch.cat([part.view(name) for part in parts]), weights)
    return [f / f.square().sum().sqrt() for f in features]


def plain_distance(one, other):
    return (one - other).square().sum().sqrt()


def plain_batch_hard(points, labels):
    losses = []
    for i, anchor in enumerate(points):
        own = [plain_distance(anchor, p) for j, p in enumerate(points) if j != i and labels[j] == labels[i]]
        others = [plain_distance(anchor, p) for j, p in enumerate(points) if labels[j] != labels[i]]
        if own and others:
            losses.append(max(max(own) - min(others) + 1, 0 * own[0]))
    return sum(losses) / len(losses) if losses else torch.zeros((), dtype=torch.float64)
