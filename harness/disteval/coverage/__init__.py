"""Proof that every sample was counted exactly once.

`counted` holds the ids that one rank counted, `proof` compares what all ranks counted with the data
set, and `faults` names the samples for which they differ.
"""

from disteval.coverage.counted import Counted, unpacked_ids
from disteval.coverage.faults import check_once, describe_faults, fault_of, name_some, not_once
from disteval.coverage.proof import (
    GAMMA,
    MASK,
    Certificate,
    add_certificates,
    add_contents,
    certify,
    mix,
    prove,
)

__all__ = [
    "GAMMA",
    "MASK",
    "Certificate",
    "Counted",
    "add_certificates",
    "add_contents",
    "certify",
    "check_once",
    "describe_faults",
    "fault_of",
    "mix",
    "name_some",
    "not_once",
    "prove",
    "unpacked_ids",
]
