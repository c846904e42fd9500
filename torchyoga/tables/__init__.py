"""Arrow, Parquet, data frames and Hugging Face datasets into rows, in place, and rows into them.

Doors: `from_arrow`, `from_parquet`, `from_huggingface`, and `to_arrow`.
Never sees versions or loaders.
"""
