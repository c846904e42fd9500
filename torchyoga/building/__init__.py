"""The rows of a source into a published version: blocks, files, manifest.

Doors: `build`, `RowSource`, `BlockSource`. Never sees orders or frameworks.
"""
