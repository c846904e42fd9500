"""Two versions, row by row: what differs between them.

Door: `diff`. Rows are compared by hashes, which are kept beside a version.
"""
