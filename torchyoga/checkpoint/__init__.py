"""A training program and its loaders into steps that are saved whole, and back.

Door: `Checkpoint`. Never sees formats or versions.
"""
