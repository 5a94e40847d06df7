"""What a call says that raised, lost ranks or did not return, and which cases will break alike."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from disteval.audit.case import Settings
from disteval.audit.findings import Kind
from disteval.errors import WorldError, describe_error
from disteval.world import PostMortem, RankStatus
from disteval.world.postmortem import list_ranks

_TORCH_FILE, _WRAPPER = "distributed_c10d.py", "wrapper"
_LIBRARIES = {"site-packages", "dist-packages"}
_FOLDERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(__file__).parents[1],
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)
_SECOND_GROUP = "initialize the default process group twice"  # as torch says
_GROUP_IS_UP = "; the process group is up when the function is called, so leave that out"
_OF_SAMPLES = ("AttributeError", "IndexError", "KeyError", "TypeError", "ValueError")

_MOST_BROKEN = 4  # of a function that was right in no case


class Broken(NamedTuple):
    """A call that did not return on every rank.

    Attributes:
        kind: How it broke.
        sentence: What each rank did.
        alone: Whether no rank had to wait for another one, so that every call may break like it.
        lost: Whether ranks were lost, so that nothing is known of the others.
        may_be_slow: Whether ranks that hang may be slow instead: not if they called different
            collectives.
    """

    kind: Kind
    sentence: str
    alone: bool = False
    lost: bool = False
    may_be_slow: bool = False


_Place = tuple[Sequence[int], str, bool]
"""Some ranks, where they are, and whether they have returned or wait for others."""


def describe(error: WorldError, world_size: int = 2) -> Broken:
    """Return the kind and the sentence of a call that raised, lost ranks or did not return."""
    found = error.post_mortem or PostMortem(str(error).partition("\n")[0], ())
    calls = f"; {found.text_of_calls}" if found.text_of_calls else ""
    alone = error.in_step or world_size == 1
    raised = ""
    if error.errors:
        rank = min(error.errors)
        raised = f"rank {rank} raised {describe_error(error.errors[rank]).rstrip(': ')}"
        if isinstance(error.errors[rank], ModuleNotFoundError):
            raised += "; install it where the ranks run"
        elif _SECOND_GROUP in str(error.errors[rank]):
            raised += _GROUP_IS_UP
        if len(error.errors) > 1 and error.in_step:
            raised = f"{len(error.errors)} ranks raised, {raised}"
    if error.lost:
        # What other ranks raise then is that they can't reach it.
        alone |= found.ended_itself
        crashed = f"{found.happened}; {raised}" if raised else found.happened
        return Broken("crashes", crashed + calls, alone, lost=True)
    places = _places(found.ranks)
    where = "; ".join(sentence for _, sentence, _ in places)
    if raised:
        crashed = f"{raised}; meanwhile {where}" if where else raised
        return Broken("crashes", crashed + calls, alone)
    late = f"no progress for {found.waited:g} s" if found.waited else "no progress"
    hangs = f"{where}: {late}" if where else found.happened
    waiting = {rank for ranks, _, waits in places if waits for rank in ranks}
    # A rank that made no call, and neither waits nor has returned, may still come to it.
    may_be_slow = found.parting is None or not waiting.issuperset(found.parting.without)
    return Broken("hangs", hangs + calls, alone, may_be_slow=may_be_slow)


def hint_of_samples(sentence: str) -> str:
    """Return what may be wrong with a function that raises in every case; empty text if known."""
    if _GROUP_IS_UP in sentence or not any(name in sentence for name in _OF_SAMPLES):
        return ""
    return (
        "; the samples of case.dataset are dicts, which may be why: disteval audit --write plain "
        "prints a function to start from"
    )


def hint_of_time(found: Broken, was_fresh: bool, size: int) -> str:
    """Return that a call may need more time; empty text where it does not.

    A first call may compile. One rank waits for no other, so it may be slow in any call.
    """
    if not (was_fresh or size == 1) or not found.may_be_slow:
        return ""
    first = "; this was the first call of these ranks" if was_fresh else ""
    return f"{first}; if it is merely slow, allow more with --timeout"


def expects(broke: Sequence[tuple[Settings, Broken]], settings: Settings, any_right: bool) -> bool:
    """Return whether a call must be expected to break as an earlier one did.

    Each costs a time limit, or new ranks at least.
    """
    if len(broke) >= _MOST_BROKEN and not any_right:
        return True
    mine = _traits(settings)
    for other, found in broke:
        ranks, *parted = its = _traits(other)
        # A case that has everything by which ranks parted in one that hung will hang, too.
        has_all = all(one >= each for one, each in zip(mine, its, strict=True))
        may_part = found.kind == "hangs" and has_all and (any(parted) or ranks == 1)
        if mine == its or may_part:
            return True
    return False


def _traits(settings: Settings) -> tuple[int, ...]:
    """Return what decides whether a case can break as another one does.

    Ranks mostly part because one has no sample, or fewer samples or batches than another.
    """
    size, ranks, batch = settings.size, settings.world_size, settings.batch_size
    shares = [len(range(rank, size, ranks)) for rank in range(ranks)]
    batches = {-(-share // batch) for share in shares}
    return ranks, 0 in shares, len(set(shares)) > 1, len(batches) > 1, settings.num_workers > 0


def _places(ranks: Sequence[RankStatus]) -> list[_Place]:
    """Return where ranks are: in which collective, and in which line of the user's own file."""
    found: list[_Place] = []
    alike: dict[tuple[object, ...], list[RankStatus]] = {}
    for status in ranks:
        if status.returned:
            found.append(([status.rank], f"rank {status.rank} has returned", True))
        elif status.stopped and not status.reply:
            found.append(([status.rank], f"rank {status.rank} is stopped by a signal", False))
        elif status.stack or status.no_stack:
            alike.setdefault((*status.frames, status.no_stack), []).append(status)
    return found + [_place(some, len(ranks)) for some in alike.values()]


def _place(some: Sequence[RankStatus], world_size: int) -> _Place:
    ranks = [status.rank for status in some]
    name, one, frames = list_ranks(ranks, world_size), len(ranks) == 1, some[0].frames
    # A collective of torch.distributed is what people call; a backend of ours may be under it, and
    # under one for objects are those for tensors.
    called = [f.function for f in frames if Path(f.file).name == _TORCH_FILE]
    called = [each for each in called if not each.startswith("_") and each != _WRAPPER]
    collective = some[0].position.name if some[0].position.inside else ""
    collective = called[-1] if called else collective
    users = [frame for frame in frames if _is_users(frame.file)]
    # Other files than those beside the function may be a library that is not installed.
    folder = str(Path(users[-1].file).parent) if users else ""
    own = next((frame for frame in users if frame.file.startswith(folder)), None)
    where = f"{Path(own.file).name}, line {own.line}" if own else ""
    if collective:
        wait = f"{name} wait{'s' * one} in {collective}"
        return ranks, f"{wait} ({where})" if where else wait, True
    be = f"{name} {'is' if one else 'are'}"
    if own:
        return ranks, f"{be} in {own.function} ({where})", False
    inside = f"in {frames[0].function}" if frames else "blocked outside of Python"
    return ranks, f"{be} {inside}", False


def _is_users(path: str) -> bool:
    is_library = path.startswith(("<", *_FOLDERS)) or not _LIBRARIES.isdisjoint(Path(path).parts)
    return not is_library
