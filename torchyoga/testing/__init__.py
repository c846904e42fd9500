"""Kits that test anyone's dataset, view, store, source or loader against the contracts of this package.

Each raises AssertionError with a message that says what differs, and returns None if nothing does.
"""

from .dataref import check_dataref, check_resume
from .rows import assert_rows_equal
from .store import check_source, check_store
from .view import check_view

__all__ = ["assert_rows_equal", "check_dataref", "check_resume", "check_source", "check_store", "check_view"]
