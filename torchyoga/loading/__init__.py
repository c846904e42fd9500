"""Rows into what torch and its trainers expect of a loader: batches, workers and devices.

Doors: `DataLoader`, `to_device`. Never sees formats or stores.
"""
