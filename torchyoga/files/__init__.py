"""Names below a folder into regular files, never through links, and bytes into checksums.

Doors: `Root`, `open_regular`, `crc32_of`. Never sees what the files mean.
"""
