"""The interfaces of other libraries into ours, for programs that were written for them.

Door: `yogadl`. Never sees formats or stores.
"""
