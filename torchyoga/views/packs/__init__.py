"""Several rows as one, up to a budget of tokens: which rows are in a pack, and what a pack holds."""
