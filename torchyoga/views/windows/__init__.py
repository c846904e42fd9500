"""Several rows in sequence as one row: where windows lie, and what their rows are made of."""
