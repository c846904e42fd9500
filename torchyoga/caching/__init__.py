"""A dataset, or the function that makes it, into versions that are built once and read from then on.

Doors: `submitted`, `Cacheable`. Never sees formats, or the kind of store.
"""
