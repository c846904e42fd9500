"""Rows of DataRefs, chosen and laid end to end, as one DataRef.

Door: `MappedRef`. Never sees files, or how rows are shuffled.
"""
