"""The templates of pages, and their sheet of styles."""
