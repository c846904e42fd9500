"""A dataset -> one page that shows what is in it, and a small table for notebooks."""
