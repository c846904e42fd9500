"""The calls of a function that makes a dataset: how it is written, and the arguments it is called with.

Doors: `Function`, `Call`. Never sees files, or what the function makes.
"""
