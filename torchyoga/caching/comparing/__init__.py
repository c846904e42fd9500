"""Two versions, row by row: what differs between them, what they have in common, and how a version was made.

Doors: `diff`, `overlap`, `audited`. Rows are compared by hashes, which are kept beside a version.
"""
