"""A build by many: a plan, parts that anyone may build, notes of those that are done, one manifest.

Doors: `Board`, `Plan`, `build_part`, `publish`. All state is in the store. Never sees who runs a part.
"""
