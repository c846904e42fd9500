"""What one Python process has: its memory, threads, forks, warnings and progress bars.

Doors: `Buffers`, `Background`. Never sees rows, files or torch's loaders.
"""
