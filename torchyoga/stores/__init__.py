"""Built files into a version that is published once: in a directory, or behind a URL with a cache.

Doors: `Store`, `LocalStore`, `RemoteStore`. Never sees orders or frameworks.
"""
