"""The losses once more, in plain torch on a dict of weights: vision transformer, soft targets, masked autoencoder."""

import math

import pytest
import torch
import torch.nn.functional as F

from dietcl.keys import torch_generator


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


def plain_encoder(images, weights, keep=None):
    patches = plain_patches(images).permute(0, 1, 4, 2, 3).flatten(2)
    kernel = weights["encoder.vit.patch_embed.proj.weight"].flatten(1)
    tokens = patches @ kernel.T + weights["encoder.vit.patch_embed.proj.bias"] + weights["encoder.vit.pos_embed"][:, 1:]
    if keep is not None:
        tokens = torch.stack([tokens[i, kept] for i, kept in enumerate(keep)])
    first = (weights["encoder.vit.cls_token"] + weights["encoder.vit.pos_embed"][:, :1]).expand(len(images), -1, -1)
    x = torch.cat([first, tokens], dim=1)
    for block in range(4):
        x = plain_block(x, weights, f"encoder.vit.blocks.{block}", heads=3)
    return F.layer_norm(x, (96,), weights["encoder.vit.norm.weight"], weights["encoder.vit.norm.bias"], 1e-6)


def plain_logits(images, weights):
    features = plain_encoder(images, weights)[:, 1:].mean(1)
    return features @ weights["head.weight"].T + weights["head.bias"]


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
