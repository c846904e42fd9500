"""The command line: `torchyoga`, short `yoga`. One file per command, loaded when it runs.

Arguments into calls of `Storage`, and what comes back into text, tables or JSON. Door: `group`.
"""
