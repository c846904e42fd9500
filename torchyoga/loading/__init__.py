"""Orders and rows into what torch and its trainers expect: samplers, loaders, workers and ranks.

Doors: `DataLoader`, `ResumableSampler`, `to_device`. Never sees formats or stores.
"""
