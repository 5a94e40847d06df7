"""The audit as an assertion, for tests of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from disteval.audit.cases import parse
from disteval.audit.findings import DEFAULT_TIMEOUT, Report
from disteval.audit.on_ranks import Target
from disteval.audit.runner import (
    DEFAULT_SECONDS,
    DEFAULT_WORLD_SIZES,
    Audit,
)
from disteval.errors import AuditError


def audit(
    evaluate: Target,
    world_sizes: Sequence[int] = DEFAULT_WORLD_SIZES,
    *,
    backend: str = "torch_cpu",
    launcher: str | None = None,
    tokens: bool = False,
    seed: int = 0,
    timeout: float = DEFAULT_TIMEOUT,
    seconds: float = DEFAULT_SECONDS,
    case: str | None = None,
) -> Report:
    """Audit an evaluation function, and raise what it does wrong; for tests of one's own.

    Args:
        evaluate: The function, which takes a `Case`; or ``module:function``.
        world_sizes: The numbers of ranks to try.
        backend: The backend whose group the function finds.
        launcher: How to start the ranks; None stands for the backend's own.
        tokens: Whether samples have tokens.
        seed: The seed of the drawn cases and of what is planted.
        timeout: The seconds that one call may take; the first one may take six times as many.
        seconds: The seconds after which no further case is tried.
        case: The one case to try, such as ``N=5,B=4,W=2``; None stands for all.

    Returns:
        The report of a function that is sound.

    Raises:
        AuditError: The function is wrong, or could not be judged; ``report`` has all findings.
        UsageError: ``case`` names no case.
        HarnessError: The ranks could not be started.
    """
    only = None if case is None else parse(case)
    sizes = world_sizes if only is None else (only.world_size,)
    report = Audit(
        evaluate, sizes, backend, launcher, tokens, seed, timeout, seconds, only=only
    ).run()
    if report.verdict != "sound":
        raise AuditError(report)
    return report
