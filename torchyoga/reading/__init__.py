"""Row numbers of a version into rows: open files, reading ahead, streams and DataRefs.

Doors: `Reader`, `DataRef`, `Stream`. Never sees locks, stores or frameworks.
"""
