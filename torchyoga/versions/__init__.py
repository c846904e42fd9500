"""What a version is: its manifest, its names, its files while they are built, and where they lie then.

Doors: `Manifest`, `Staging`, `Files`. Never sees frameworks or the network.
"""
