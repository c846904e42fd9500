"""Rows of several DataRefs, chosen and laid end to end, into one DataRef.

Door: `MappedRef`. Never sees files, or how rows are shuffled.
"""
