"""Continual learning from sparsely labeled streams under a computation budget."""

__version__ = "0.1.0"
