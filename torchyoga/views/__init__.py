"""DataRefs over other DataRefs: some of their rows, several of them end to end, split, windowed or changed.

Doors: `where`, `concat`, `mix`. Never sees files, or how rows are shuffled.
"""
