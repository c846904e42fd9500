"""Versions and their rows into pages for a browser on this machine, by a small server.

Door: `view`. Never sees what is in a file.
"""
