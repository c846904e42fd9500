"""One value of a row -> what people see of it: a short text, and a small picture where it is an image."""
