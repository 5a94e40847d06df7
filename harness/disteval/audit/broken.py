"""What a call says that raised, lost ranks or did not return."""

from __future__ import annotations

import re
from typing import NamedTuple

from disteval.audit.case import Settings
from disteval.audit.findings import Kind
from disteval.errors import WorldError, describe_error

_TORCH_CALL = re.compile(r"distributed_c10d\.py\", line \d+ in ([^_]\w+)")
_SECTION = re.compile(r"^stack of (.*):$")
_WRAPPER = "wrapper"


class Broken(NamedTuple):
    """A call that did not return on every rank."""

    kind: Kind
    sentence: str


def describe(error: WorldError) -> Broken:
    """Return the kind and the sentence of a call that raised, lost ranks or did not return."""
    headline = str(error).partition("\n")[0].rpartition("; the order was to")[0]
    waits = "; ".join(_waits(str(error)))
    raised = ""
    if error.errors:
        rank = min(error.errors)
        raised = f"rank {rank} raised {describe_error(error.errors[rank]).rstrip(': ')}"
        if len(error.errors) > 1 and error.in_step:
            raised = f"{len(error.errors)} ranks raised, {raised}"
    if error.lost:
        # What other ranks raise then is that they can't reach it.
        lost = headline or str(error).partition("\n")[0]
        return Broken("crashes", f"{lost}; {raised}" if raised else lost)
    if raised:
        return Broken("crashes", f"{raised}; meanwhile {waits}" if waits else raised)
    return Broken("hangs", f"{waits or headline}, and the call did not return in time")


def traits(settings: Settings) -> tuple[object, ...]:
    """Return what decides whether a case can break as another one does.

    Ranks mostly part because one has no sample, or fewer samples or batches than another.
    """
    size, ranks, batch = settings.size, settings.world_size, settings.batch_size
    shares = [len(range(rank, size, ranks)) for rank in range(ranks)]
    batches = {-(-share // batch) for share in shares}
    return ranks, 0 in shares, len(set(shares)) > 1, len(batches) > 1, settings.num_workers > 0


def _waits(text: str) -> list[str]:
    """Return which ranks wait in which collective of torch.distributed, from their stacks."""
    found: list[str] = []
    ranks = ""
    for line in text.splitlines():
        if section := _SECTION.match(line):
            ranks = section[1]
        elif not line.startswith(" "):
            ranks = ""
        elif ranks and (match := _TORCH_CALL.search(line)) and match[1] != _WRAPPER:
            found.append(f"{ranks} wait{'s' * ranks.startswith('rank ')} in {match[1]}")
            ranks = ""
    return found
