"""Mixtures as arithmetic: the source of each row in whole proportions, and how often each was read."""
