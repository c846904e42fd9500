"""What a row is: its leaves, the schema of its columns, blocks of rows, and batches made of blocks.

Doors: `Schema`, `Block`, `Collation`. Never sees files, orders or frameworks other than torch.
"""
