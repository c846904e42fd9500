"""Seed, epoch and rank into row numbers, and the rows delivered into a state: arithmetic on integers.

Doors: `OrderOptions`, `Cursor`, `prove`. Never sees data, files, clocks or torch.
"""
