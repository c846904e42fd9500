"""The templates of the pages, and their sheet of styles."""
