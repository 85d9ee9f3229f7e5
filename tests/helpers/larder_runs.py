"""Runs of Larder on the tiny stream: the encoder learns or is frozen, and classes come once or again."""

from dataclasses import replace

import numpy as np

from dietcl.streams.options import Recipe
from helpers.tiny import tiny_config, tiny_learner

LEARNED, FROZEN = "full", "head"
NEW, AGAIN = "class", "data"  # classes come once, or in every time step
KINDS = [(LEARNED, NEW), (LEARNED, AGAIN), (FROZEN, NEW), (FROZEN, AGAIN)]


def configured(blobs, train=LEARNED, recipe=NEW, budget="9", rate=0.2, method="larder", seed=0, **options):
    config = tiny_config(blobs, method, budget=budget, seed=seed, **options)
    recipe = Recipe(recipe=recipe, time_steps=3, label_rate=rate)
    return replace(config, recipe=recipe, model=replace(config.model, train=train))


def learner_of(blobs, *arguments, **options):
    return tiny_learner(configured(blobs, *arguments, **options))


def truth_of(learner, rows):
    """Return the classes of images, which no method is told."""
    index = learner.loader.storage.index
    number = {name: number for number, name in enumerate(learner.stream.classes)}
    return np.array([number[index.classes[code]] for code in index.label[learner.stream.index_row[rows]]])
