"""Tables of other programs into rows, in place, and rows into them: Arrow, Parquet, data frames, Hugging Face.

Doors: `from_arrow`, `from_parquet`, `from_pandas`, `from_polars`, `from_huggingface`, and `Exports`. Never sees
versions, loaders, or how rows are shuffled.
"""
