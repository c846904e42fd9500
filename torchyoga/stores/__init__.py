"""Where versions are kept: the contract, a directory, and a store behind a URL with its cache.

Doors: `Versions`, `Store`, `Mirror`. Never sees orders or frameworks.
"""
