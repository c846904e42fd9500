"""Datasets and loaders into what people see: commands, findings, pages.

Doors: the command `torchyoga`, `doctor`, `report`, `view`. Never sees what is in a file.
"""
