"""Mapped files into bytes: pages, addresses, numbered items, and the checks of their checksums.

Doors: `Memory`, `Items`, `Checks`. Never sees formats, versions or rows.
"""
