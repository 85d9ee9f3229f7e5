"""Pieces that several methods share; a method imports them when it runs, because they load torch."""
