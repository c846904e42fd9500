"""The memory, threads, forks, warnings and progress bars of one Python process.

Doors: `BufferPool`, `Ahead`, `renew_in_children`. Never sees rows, files or torch.
"""
