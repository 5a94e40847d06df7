"""The cases of an audit: all small ones in order of size, and then some larger ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from disteval.arguments import did_you_mean
from disteval.audit.case import Settings
from disteval.audit.jobs import DAMAGES
from disteval.errors import UsageError

_SMALL_SIZES = range(1, 10)
_SMALL_BATCHES = range(1, 5)
_AT_ONCE = 2  # the most samples of a case that is begun and ended at once
_ROUNDS = range(1, 4)
_DRAWN = 20
_LARGEST, _LARGEST_BATCH = 80, 16
# More samples than eight bits count, or a bfloat16 sum tells apart; and more than float16 counts.
_MANY = ((299, 24), (2051, 171))
_MANY_DIVISIBLE = ((288, 24), (2565, 171))

MANY_STEPS = 1_025
"""Batches of one sample, more than a trainer evaluates whose number of batches is limited."""

ASSUMPTIONS: Mapping[str, tuple[str, Callable[[Settings], bool]]] = {
    "divisible": (
        "the number of samples is divisible by the world size times the batch size",
        lambda s: s.size % (s.world_size * s.batch_size) == 0,
    ),
    "even": (
        "the number of samples is divisible by the world size",
        lambda s: s.size % s.world_size == 0,
    ),
    "nonempty": ("every rank has a sample", lambda s: s.size >= s.world_size),
    "sized": ("the number of samples is known before they are read", lambda s: True),
    "one_rank": ("there is one rank", lambda s: s.world_size == 1),
    "numbered": ("each sample's id is its position, from 0 up", lambda s: not s.ids),
    "no_workers": ("the loader has no workers", lambda s: s.num_workers == 0),
    "no_shuffle": ("the samples are not shuffled", lambda s: not s.shuffle),
    "whole_parts": (
        "a part is whole once it has its name",
        lambda s: s.damage in ("", "lost", "repeated"),
    ),
}
"""What a function may assume: in words, and whether it holds in a case."""


def check_assumptions(names: object) -> tuple[str, ...]:
    """Return the assumptions of a user's function.

    Raises:
        UsageError: They are not a tuple of names, or a name is not known.
    """
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UsageError(
            f"evaluate.assumes must be a tuple of names, such as ('divisible',), not {names!r:.100}"
        )
    found = tuple(names)
    for name in found:
        if name not in ASSUMPTIONS:
            raise UsageError(
                f"evaluate.assumes has {name!r:.100}, which is not known."
                f"{did_you_mean(name, ASSUMPTIONS)} The known ones are: {', '.join(ASSUMPTIONS)}"
            )
    return found


def cases(
    world_sizes: Sequence[int],
    assumes: Sequence[str] = (),
    *,
    jobs: bool = False,
    tokens: bool = False,
    seed: int = 0,
) -> Iterator[Settings]:
    """Generate the cases of an audit that hold what the function assumes, the smallest first.

    Args:
        world_sizes: The world sizes to try.
        assumes: The names of the function's assumptions.
        jobs: Whether each rank is a job that writes a part, which may be damaged.
        tokens: Whether samples have tokens.
        seed: The seed of the drawn cases and of what is planted.
    """
    divisible = "divisible" in assumes
    # In whole rounds every rank has as many full batches.
    whole = sorted({r * w * b for r, w, b in product(_ROUNDS, world_sizes, _SMALL_BATCHES)})
    sizes = whole if divisible else _SMALL_SIZES
    small = [Settings(*each) for each in product(sizes, _SMALL_BATCHES, sorted(world_sizes))]
    large = product(_MANY_DIVISIBLE if divisible else _MANY, sorted(world_sizes))
    many = [Settings(*size, world_size) for size, world_size in large]
    drawn = sorted(_drawn(world_sizes, seed), key=lambda s: s.size)
    fewest = min(world_sizes)
    chosen = [*small, *_otherwise_read(small), *_damaged(world_sizes, jobs), *drawn, *many]
    chosen.append(Settings(MANY_STEPS * fewest, 1, fewest))
    if "numbered" in assumes:
        chosen = [replace(settings, ids=False) for settings in chosen]
    for settings in dict.fromkeys(chosen):
        if not not_held(settings, assumes):
            yield replace(settings, tokens=tokens, seed=seed + settings.seed)


def in_steps(chosen: Iterable[Settings]) -> list[tuple[Settings, bool]]:
    """Return the steps of an audit: a case, and whether an earlier step has begun it.

    All larger cases are begun before any of them is ended, so that each is tried early.
    """
    small: list[Settings] = []
    larger: list[Settings] = []
    for settings in chosen:
        at_once = settings.size <= _AT_ONCE and not settings.ids
        (small if at_once else larger).append(settings)
    whole = [(settings, again) for settings in small for again in (False, True)]
    return whole + [(settings, again) for again in (False, True) for settings in larger]


def not_held(settings: Settings, assumes: Sequence[str]) -> list[str]:
    """Return the assumptions that a case does not hold, in words."""
    return [ASSUMPTIONS[name][0] for name in assumes if not ASSUMPTIONS[name][1](settings)]


def parse(text: str) -> Settings:
    """Return the case that a replay names, such as ``N=5,B=4,W=2,workers=2,shuffle``.

    Raises:
        UsageError: The text does not name a case.
    """
    words = dict(part.strip().partition("=")[::2] for part in text.split(","))
    flags = [name for name in ("shuffle", "tokens", "ids") if name in words]
    damage = next((word for word in words if word in DAMAGES), "")
    least = {"N": 1, "B": 1, "W": 1, "workers": 0, "seed": 0} | ({damage: 0} if damage else {})
    try:
        if any(words.pop(name) for name in flags):
            raise ValueError
        numbers = {name: int(value) for name, value in words.items()}
        size, batch_size, world_size = (numbers[name] for name in "NBW")
        job = numbers.get(damage, 0)
        if any(value < least[name] for name, value in numbers.items()) or job >= world_size:
            raise ValueError
    except (KeyError, ValueError):
        raise UsageError(
            f"--case {text!r:.100} names no case; write it as N=5,B=4,W=2, with workers=2, "
            f"shuffle, tokens, ids or seed=1 behind that if needed, and for jobs lost=0 or another "
            f"of {', '.join(DAMAGES)}, with the number of a job"
        ) from None
    workers, seed = numbers.get("workers", 0), numbers.get("seed", 0)
    found = Settings(size, batch_size, world_size, workers, seed=seed, damage=damage, job=job)
    more: dict[str, Any] = dict.fromkeys(flags, True)
    return replace(found, **more)


def _otherwise_read(small: Sequence[Settings]) -> Iterator[Settings]:
    """Return some of the small cases with other ids, shuffled, or with loader workers."""
    yield from (replace(s, ids=True) for s in small if s.size in (1, 2, 4) and s.batch_size == 1)
    some = [s for s in small if s.size in (4, 5, 9, 12) and s.batch_size == 2]
    yield from (replace(s, shuffle=True) for s in some)
    yield from (replace(s, num_workers=2, ids=s.size > 5) for s in some if s.size > 4)
    yield from (replace(s, num_workers=2, shuffle=True, seed=1) for s in some if s.size in (5, 12))


def _damaged(world_sizes: Sequence[int], jobs: bool) -> Iterator[Settings]:
    """Return cases in which something happens to the first or the last of several jobs.

    With a prime number of samples no part of them has the same accuracy as all.
    """
    for ranks, damage in product(sorted(world_sizes) if jobs else (), DAMAGES):
        for size, job in product((7, 5 * ranks), (0, ranks - 1)):
            if ranks > 1:
                yield Settings(size, 1, ranks, damage=damage, job=job)


def _drawn(world_sizes: Sequence[int], seed: int) -> Iterator[Settings]:
    draw = random.Random(seed)  # noqa: S311
    for number in range(_DRAWN):
        world_size = draw.choice(sorted(world_sizes))
        batch_size = draw.randint(1, _LARGEST_BATCH)
        size = draw.randint(max(_SMALL_SIZES) + 1, _LARGEST)
        if draw.random() < 0.2:
            size = world_size * batch_size * draw.randint(1, 4)
        shuffle, ids = draw.random() < 0.3, number % 2 == 1
        yield Settings(size, batch_size, world_size, shuffle=shuffle, ids=ids, seed=number)
