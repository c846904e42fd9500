"""The command line: `torchyoga`, short `yoga`. A file for each section of its help.

Arguments into calls of `Storage`, and what comes back into text, tables or JSON. Door: `group`.
"""
