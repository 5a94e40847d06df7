"""What tests know of the ledger of an evaluation: its parts, its bytes, and sums of states."""

from __future__ import annotations

from disteval import ledger
from disteval.coverage import certify, packed_ids, unpacked_ids
from disteval.ledger import Ledger, LedgerLog, Part, merged
from disteval.metrics.totals import compute_totals, pack_totals, take_totals
from disteval.plain import dumps, loads, packed
