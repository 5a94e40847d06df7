"""Causes of state that outlives a mistake; most are seen by the check, as the step that failed."""

from __future__ import annotations

from disteval.conformance.causes.lists import SRC_IGNORED
from disteval.conformance.causes.special import STATE_AFTER_ERROR, SWALLOWED
from disteval.conformance.seen import Seen

SHARED = (
    "the worlds share a port, a path or a name; take it from the rendezvous, which each group has "
    "for itself"
)
ENDS_OTHERS = (
    "leaving a group ends what other groups use; undo in finalize_process only what init_process "
    "of this group has done"
)
LEFT_BEHIND = (
    "the group that was left is still there in part; undo in finalize_process all that "
    "init_process has done, or, where the library can't, declare joins_again a No with the reason"
)
NOT_LEFT = (
    "finalize_process raises or does not return; have it leave the group without waiting for other "
    "ranks, also after an error"
)
THREADS = (
    "calls of two threads share connections, buffers or numbers; refuse the second call, as "
    "BytesBaseDistBackend does, or hold a lock during the whole collective"
)
ALONE_IN_A_THREAD = (
    "the group is known to the thread that joined it only, and another thread takes itself for a "
    "world of one; keep the group in the class or in the backend object"
)
CHILD = (
    "a forked child uses what belongs to its parent's group; compare os.getpid() with that of "
    "init_process before anything else, and raise an error"
)
UNNUMBERED = (
    "messages do not say to which collective they belong; send its number and name along, and "
    "raise an error on every rank where those of others differ"
)
NOT_AWAITED = (
    "a rank's collective ends before a message of every other rank has come, so that it does not "
    "learn of their errors; let each collective wait for all ranks"
)
_ERROR = "an error"


def of_step(seen: Seen) -> str:
    """Return the cause that belongs to the step at which a check has failed, if it named one."""
    return seen.facts if isinstance(seen.facts, str) else ""


def unmatched(seen: Seen) -> str:
    """Recognise which ranks of rule 6.4 had no error, and a wrong result after errors.

    The facts of each difference are whether an all-gather worked before the error.
    """
    shown = [difference for difference in seen.shown if difference.got]
    if not shown or len(shown) < len(seen.shown):
        return ""
    outcomes = [difference.got[0] for difference in shown if difference.got]
    went_on = sum(outcome != _ERROR for outcome in outcomes)
    if went_on and all(outcome in (_ERROR, None, [None] * seen.world_size) for outcome in outcomes):
        return SWALLOWED
    if not went_on:
        return STATE_AFTER_ERROR if seen.every[0].wrong.facts else ""
    if all(None not in difference.arg for difference in seen.every):  # broadcasts, and no gather
        return SRC_IGNORED if went_on == seen.world_size else NOT_AWAITED
    return UNNUMBERED if went_on == seen.world_size else NOT_AWAITED
