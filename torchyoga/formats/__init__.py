"""Blocks of rows into one file and back: the contract, LMDB and HDF5.

Door: `contract.FORMATS`. Never sees versions, stores or ranks.
"""
