"""A framework's data, arrays or somebody's files into rows, and rows back into a framework's data.

One file per framework. Never sees stores.
"""
