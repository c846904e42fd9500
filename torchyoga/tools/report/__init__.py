"""A dataset -> one page that shows what is in it."""
