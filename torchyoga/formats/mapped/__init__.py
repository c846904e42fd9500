"""Addresses in mapped files into bytes, compared with their checksums once.

Doors: `Memory`, `Items`, `Checks`. Never sees formats, versions or rows.
"""
