"""Values kept encoded, and decoded when they are read: images, text and sound."""
