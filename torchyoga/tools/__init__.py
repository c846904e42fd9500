"""Datasets and loaders into what people see: commands, findings, pages.

Door: `main`. Never sees what is in a file.
"""
