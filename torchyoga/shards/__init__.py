"""Tar archives into samples: where their members lie, or what they hold, in order; nothing is extracted.

Doors: `shard_names`, `index_of`, `ShardRows`. Never sees stores or frameworks.
"""
