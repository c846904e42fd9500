"""Data, and whoever is to read it -> a version built in parts: by workers of an executor, or by all callers.

Doors: `submitted_by_many`, `planned_build`. Never sees how files are written.
"""
