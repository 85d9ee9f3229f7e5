"""Readers of common layouts: a folder, a table, tar shards, Parquet from the Hub, arrays, IDX, zipped WebP strips."""
