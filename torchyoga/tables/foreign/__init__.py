"""Files of other libraries as rows by number, where they lie; these libraries are not needed."""
