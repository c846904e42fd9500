"""Documents as tokens in a line, cut into windows; rows of like length as batches of equal budget."""
