"""Blocks of rows into one file and back: one contract, and its two formats, LMDB and HDF5.

Door: `FORMATS`. Never sees versions, stores or ranks.
"""
