"""Leases: pieces of an evaluation that are lent to ranks, and lent again when a rank is lost.

`book` decides which rank evaluates which units, and `ledger` keeps what was committed on disk.
`lender` answers the ranks, each of which has a `borrower`.
"""

from disteval.leases.book import Book, Counts, Lease
from disteval.leases.borrower import Borrower
from disteval.leases.ledger import Ledger
from disteval.leases.lender import Lender
from disteval.leases.members import Event
from disteval.leases.messages import LeaseReport
from disteval.leases.rows import Committed

__all__ = [
    "Book",
    "Borrower",
    "Committed",
    "Counts",
    "Event",
    "Lease",
    "LeaseReport",
    "Ledger",
    "Lender",
]
