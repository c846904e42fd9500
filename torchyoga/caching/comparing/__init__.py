"""Two datasets, row by row: what differs between them, `diff`, by hashes that are kept beside a version."""
