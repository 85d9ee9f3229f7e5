"""Pieces that several methods share; those that load torch are imported when a method runs."""
