"""Which rows each rank gets next, and the account of those that were delivered.

Doors: `ResumableSampler`, `Indices`, `Ranks`. Never sees batches, formats or stores.
"""
