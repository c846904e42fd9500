"""A version: its manifest, its names, its files while they are built, and where they lie.

Doors: `Manifest`, `Staging`, `Files`. Never sees frameworks or the network.
"""
