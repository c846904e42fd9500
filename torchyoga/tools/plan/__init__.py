"""Files, nodes and caches -> requests, bytes, money and seconds of an epoch.

Doors: `Cluster`, `Files`, `epoch_of`. Never sees a store.
"""
