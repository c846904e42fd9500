"""Values kept encoded, and decoded when they are read: images, text and sound.

Doors: `EncodedSource`, `decoded`. Never sees files, or how rows are shuffled.
"""
