"""Data of frameworks, arrays and other libraries' files into rows, and rows into frameworks' data.

Doors: `from_arrays`, `from_hdf5`, `from_lmdb`, and one file for each framework. Never sees stores.
"""
