"""Which row comes when: arithmetic on integers, the place that an iteration has reached, and its state.

Doors: `make_order`, `Cursor`, `prove`. Never sees data, files, clocks or torch.
"""
