"""The doors: each turns one framework's data into rows, and rows into what the framework expects."""
