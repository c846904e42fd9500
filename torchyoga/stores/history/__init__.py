"""The history of the versions of an id: tags, the newest one, the log, and which ones to keep.

Doors: `tagged`, `newest`, `VersionLog`. Never sees rows.
"""
