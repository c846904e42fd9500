"""Rows of any nesting into columns and back, and batches made of their blocks.

Doors: `Schema`, `Block`, `Collation`. Never sees files, orders or frameworks other than torch.
"""
