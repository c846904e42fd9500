"""Tables of other programs into rows: Parquet files, read where they lie.

Door: `from_parquet`. Never sees loaders, or how rows are shuffled.
"""
