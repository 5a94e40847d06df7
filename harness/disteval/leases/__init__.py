"""Leases: pieces of an evaluation that are lent to ranks, and lent again when a rank is lost.

`book` decides which rank evaluates which units, and `disteval.ledger` keeps what was committed.
`lender` answers the ranks, each of which has a `borrower`. The leader of a world, or a thread of
rank 0, passes it their messages.
"""

from disteval.leases.book import Book, Lease
from disteval.leases.borrower import Borrower
from disteval.leases.lender import Lender, LenderThread
from disteval.world.channel.messages import LeaseReport

__all__ = ["Book", "Borrower", "Lease", "LeaseReport", "Lender", "LenderThread"]
