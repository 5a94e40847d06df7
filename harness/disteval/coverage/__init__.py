"""Proof that every sample was counted exactly once.

`counted` holds the ids that one rank counted, and `proof` compares what all ranks counted with the
data set.
"""

from disteval.coverage.counted import Counted
from disteval.coverage.proof import (
    Certificate,
    certify,
    check_once,
    describe_faults,
    name_some,
    prove,
)

__all__ = [
    "Certificate",
    "Counted",
    "certify",
    "check_once",
    "describe_faults",
    "name_some",
    "prove",
]
