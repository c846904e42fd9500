"""Waits for each batch -> numbers, and the setting to change.

Doors: `Meter`. Never sees how rows are read.
"""
