"""Waits for each batch -> numbers, and the setting to change.

Doors: `Meter`, `metered`. Never sees how rows are read.
"""
