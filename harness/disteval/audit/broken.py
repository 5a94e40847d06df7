"""What a call says that raised, lost ranks or did not return, and which cases will break alike."""

from __future__ import annotations

import os
import re
import sysconfig
from pathlib import Path
from typing import NamedTuple

from disteval.audit.case import Settings
from disteval.audit.findings import Kind
from disteval.errors import WorldError, describe_error
from disteval.worlds.postmortem import LAST, PARTED

_TORCH_CALL = re.compile(r"distributed_c10d\.py\", line \d+ in ([^_]\w+)")
_WRAPPER = "wrapper"
_SECTION = re.compile(
    r"^(?:\S+: )?stack of (.*):$"
)  # after the name of a host, if there are several
_RANK = re.compile(r"^  (?:\S+: )?(rank \d+): (.*)$")
_WAITS = re.compile(r"waits in (\w+) #\d+$")
_NO_CALL = re.compile(r"rank (\d+) made no call")
_LATE = re.compile(r"no progress for \S+ s")
_FRAME = re.compile(r"^ *File \"(.*)\", line (\d+) in (\S+)")
_EXITED = re.compile(r"exited with status|its thread ended")
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|^<")
_FOLDERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        Path(__file__).parents[1],
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    )
)
_SECOND_GROUP = "initialize the default process group twice"  # as torch says

_MOST_BROKEN = 4  # of a function that was right in no case


class Broken(NamedTuple):
    """A call that did not return on every rank.

    Attributes:
        kind: How it broke.
        sentence: What each rank did.
        alone: Whether no rank had to wait for another one, so that every call may break like it.
        lost: Whether ranks were lost, so that nothing is known of the others.
    """

    kind: Kind
    sentence: str
    alone: bool = False
    lost: bool = False


def describe(error: WorldError, world_size: int = 2) -> Broken:
    """Return the kind and the sentence of a call that raised, lost ranks or did not return."""
    headline = str(error).partition("\n")[0].rpartition("; the order was to")[0]
    alone = error.in_step or world_size == 1
    raised = ""
    if error.errors:
        rank = min(error.errors)
        raised = f"rank {rank} raised {describe_error(error.errors[rank]).rstrip(': ')}"
        raised += _what_to_do(error.errors[rank])
        if len(error.errors) > 1 and error.in_step:
            raised = f"{len(error.errors)} ranks raised, {raised}"
    if error.lost:
        # What other ranks raise then is that they can't reach it.
        lost = headline or str(error).partition("\n")[0]
        alone |= bool(_EXITED.search(lost))
        crashed = f"{lost}; {raised}" if raised else lost
        return Broken("crashes", crashed + _parted(str(error)), alone, lost=True)
    places = "; ".join(_places(str(error)))
    parted = _parted(str(error))
    if raised:
        crashed = f"{raised}; meanwhile {places}" if places else raised
        return Broken("crashes", crashed + parted, alone)
    late = _LATE.search(headline)
    hangs = f"{places}: {late[0] if late else 'no progress'}" if places else headline
    return Broken("hangs", hangs + parted, alone)


def hint_of_time(found: Broken, was_fresh: bool, size: int) -> str:
    """Return that a call may need more time; empty text where it does not.

    A first call may compile. One rank waits for no other, so it may be slow in any call.
    """
    if not (was_fresh or size == 1) or not may_be_slow(found):
        return ""
    first = "; this was the first call of these ranks" if was_fresh else ""
    return f"{first}; if it is merely slow, allow more with --timeout"


def may_be_slow(found: Broken) -> bool:
    """Return whether ranks that hang may also be slow: not if they called different collectives."""
    if PARTED.strip() not in found.sentence:
        return found.kind == "hangs"
    late = _NO_CALL.findall(found.sentence)
    return found.kind == "hangs" and any(not _waits(rank, found.sentence) for rank in late)


def _waits(rank: str, sentence: str) -> bool:
    """Return whether a rank has returned, or waits for others in a collective."""
    some = rf"(?:all \d+ ranks|ranks? (?:\d+, )*{rank}(?:, \d+)*)"
    return re.search(rf"\b{some} (?:has returned|waits? in)\b", sentence) is not None


def _parted(text: str) -> str:
    """Return the call of torch.distributed at which ranks parted, or the last of those left."""
    found = next((line for line in text.splitlines() if line.startswith((PARTED, LAST))), "")
    return f"; {found.strip()}" if found else ""


def _what_to_do(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return "; install it where the ranks run"
    if _SECOND_GROUP in str(error):
        return "; the process group is up when the function is called, so leave that out"
    return ""


class Breaks:
    """The cases that broke, by which later ones are expected to break."""

    def __init__(self) -> None:
        self._hung: list[Settings] = []
        self._others: list[Settings] = []
        self.alone = False
        """Whether no rank is known to have waited for another one in a call that broke."""

    def add(self, settings: Settings, found: Broken) -> None:
        """Note a case that broke."""
        is_first = not (self._hung or self._others)
        if is_first:
            self.alone = found.alone
        self.alone &= found.alone or found.lost
        (self._hung if found.kind == "hangs" else self._others).append(settings)

    def expects(self, settings: Settings, any_right: bool) -> bool:
        """Return whether a call must be expected to break as an earlier one did.

        Each costs a time limit, or new ranks at least.
        """
        if len(self._hung) + len(self._others) >= _MOST_BROKEN and not any_right:
            return True
        traits = _traits(settings)
        if any(traits == _traits(each) for each in [*self._hung, *self._others]):
            return True
        return any(_goes_further(traits, _traits(each)) for each in self._hung)


def _traits(settings: Settings) -> tuple[int, ...]:
    """Return what decides whether a case can break as another one does.

    Ranks mostly part because one has no sample, or fewer samples or batches than another.
    """
    size, ranks, batch = settings.size, settings.world_size, settings.batch_size
    shares = [len(range(rank, size, ranks)) for rank in range(ranks)]
    batches = {-(-share // batch) for share in shares}
    return ranks, 0 in shares, len(set(shares)) > 1, len(batches) > 1, settings.num_workers > 0


def _goes_further(traits: tuple[int, ...], hung: tuple[int, ...]) -> bool:
    """Return whether a case has everything by which ranks parted in a case that hung."""
    ranks, *parted = hung
    has_all = all(mine >= its for mine, its in zip(traits, hung, strict=True))
    return has_all and (any(parted) or ranks == 1)


def _places(text: str) -> list[str]:
    """Return where each rank is: in which collective, and in which line of the user's own file."""
    collectives: dict[str, str] = {}
    found: dict[str, str] = {}
    lines = text.splitlines()
    for line in lines:
        if match := _RANK.match(line):
            if waits := _WAITS.search(match[2]):
                collectives[match[1]] = waits[1]
            elif match[2] == "returned":
                found[match[1]] = f"{match[1]} has returned"
            elif match[2].startswith("is stopped"):
                found[match[1]] = f"{match[1]} is stopped by a signal"
    for at, line in enumerate(lines):
        if section := _SECTION.match(line):
            ranks = section[1]
            rest = lines[at + 1 :]
            length = next((i for i, each in enumerate(rest) if each[:1] != " "), len(rest))
            first = ranks.replace("ranks", "rank").partition(",")[0]
            own = collectives.get("rank 0" if ranks.startswith("all") else first, "")
            found[ranks] = _place(ranks, rest[:length], own)
    return list(found.values())


def _place(ranks: str, stack: list[str], collective: str) -> str:
    one = ranks.startswith("rank ")
    begin = next((i for i, line in enumerate(stack) if "main thread" in line), 0) + 1
    frames = []
    for line in stack[begin:]:
        if not (match := _FRAME.match(line)):
            break
        frames.append(match)
    calls = (_TORCH_CALL.search(frame[0]) for frame in frames)
    # A collective of torch.distributed is what people call; a backend of ours may be under it, and
    # under one for objects are those for tensors.
    called = [c[1] for c in calls if c and c[1] != _WRAPPER]
    collective = called[-1] if called else collective
    users = [frame for frame in frames if _is_users(frame[1])]
    # Other files than those beside the function may be a library that is not installed.
    folder = str(Path(users[-1][1]).parent) if users else ""
    own = next((frame for frame in users if frame[1].startswith(folder)), None)
    where = f"{Path(own[1]).name}, line {own[2]}" if own else ""
    if collective:
        wait = f"{ranks} wait{'s' * one} in {collective}"
        return f"{wait} ({where})" if where else wait
    be = f"{ranks} {'is' if one else 'are'}"
    if own:
        return f"{be} in {own[3]} ({where})"
    return f"{be} in {frames[0][3]}" if frames else f"{be} blocked outside of Python"


def _is_users(path: str) -> bool:
    return not (_LIBRARIES.search(path) or path.startswith(_FOLDERS))
