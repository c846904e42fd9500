"""Statistics of columns: made in one pass, of blocks or parts in any order, and merged exactly.

Blocks into counts, sums and histograms. Door: `TableStatistics`. Never sees files.
"""
