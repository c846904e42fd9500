"""Files on a disk: regular ones, a folder that is not left through links, and checksums.

Doors: `Root`, `open_regular`, `crc32_of`. Never sees what the files mean.
"""
