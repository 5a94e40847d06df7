"""Leases: pieces of an evaluation that are lent to ranks, and lent again when a rank is lost.

`book` decides which rank evaluates which units, and `ledger` keeps what was committed on disk.
"""

from disteval.leases.book import Book, Counts, Lease
from disteval.leases.ledger import Committed, Ledger

__all__ = ["Book", "Committed", "Counts", "Lease", "Ledger"]
