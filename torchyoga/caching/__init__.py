"""A call of a function that makes a dataset into the version it chooses, and digests of it.

Doors: `Function`, `Call`. Never sees files, or what the function makes.
"""
