"""Parquet files into rows, where they lie: a row group is decoded as a whole, and counts as a file.

Doors: `from_parquet`, `from_petastorm`.
"""
