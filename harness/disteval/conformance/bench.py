"""The `Bench` that a check of a rule gets: the ranks of the backend under test."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial, update_wrapper
from typing import Any, TypeVar

from disteval.conformance.fingerprint import digest
from disteval.conformance.rule import BrokenRuleError, LostWorld, Trial
from disteval.conformance.world import JudgedWorld
from disteval.conformance.wrong import Difference, compare
from disteval.contract import BaseDistBackend
from disteval.errors import WorldError
from disteval.judging.session import Session

T = TypeVar("T")
_REMEMBERED = 40
_MOST_WRONG = 400


@dataclass(eq=False)
class Bench:
    """The ranks of the backend under test, and the number of examples to try.

    Attributes:
        session: The worlds of the backend.
        world_size: The number of ranks.
        examples: The number of drawn examples for each rule.
        random_seed: The seed of drawing.
        sizes: All world sizes of the check, where they are known.
        patience: How many times as long as it should take a wait may take.
        own: The world of these ranks; None stands for the session's present one.
        cls: The backend's class.
        ran: The number of examples tried so far.
        observed: Lines in which a check describes what the ranks did, also if it passes.
        left_out: What a check leaves out on these ranks, and why; nothing if it tries all.
        wrong: The wrong results of all examples so far.
    """

    session: Session[JudgedWorld]
    world_size: int
    examples: int = 100
    random_seed: int = 0
    _: KW_ONLY
    sizes: Sequence[int] = ()
    patience: float = 1.0
    own: JudgedWorld | None = None
    cls: type[BaseDistBackend] = field(init=False)
    ran: int = field(default=0, init=False)
    observed: list[str] = field(default_factory=list, init=False)
    left_out: str = field(default="", init=False)
    wrong: list[Difference] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.cls = self.session.cls
        self._called: deque[Any] = deque(maxlen=_REMEMBERED)

    @property
    def is_smallest(self) -> bool:
        """Whether no smaller world of the check has several ranks."""
        return self.world_size == min((size for size in self.sizes if size > 1), default=None)

    @property
    def is_larger(self) -> bool:
        """Whether a smaller world of the check has several ranks: that one tries the most."""
        return any(1 < size < self.world_size for size in self.sizes)

    def share(self, examples: Sequence[T]) -> Sequence[T]:
        """Return the examples to try: one of eight where another world tries them all."""
        tried = self.is_larger or (self.world_size == 1 and max(self.sizes, default=1) > 1)
        return examples[::8] if tried else examples

    @property
    def world(self) -> JudgedWorld:
        """The ranks, in step; others if those of the session were lost."""
        return self.own or self.session.world(self.world_size)

    @contextmanager
    def fresh(self, world_size: int | None = None, **options: Any) -> Iterator[Bench]:
        """Start other ranks, which may be lost; they end with the block.

        Args:
            world_size: The number of ranks; None stands for as many.
            **options: Options of `disteval.World`.
        """
        size = world_size or self.world_size
        with self.session.fresh(size, **options) as own:
            yield Bench(self.session, size, own=own)

    def join_again(self, backend_timeout: float) -> None:
        """Have the ranks leave their group, and join another one.

        Args:
            backend_timeout: As for `disteval.World`, for ranks that may be lost.
        """
        if self.own is None:
            self.session.join_again(self.world_size)
        else:
            self.own.join(self.session.backend, backend_timeout)

    def run(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        examples: Sequence[object] = ("",),
        delay: float = 0.0,
    ) -> list[T]:
        """Run a function on every rank, and return its results.

        Args:
            function: The function that every rank runs.
            args: One argument for each rank.
            examples: Descriptions of the examples, after each of which the ranks report progress.
            delay: The seconds by which ranks are late on purpose; the timeout is that much longer.

        Raises:
            BrokenRuleError: A rank raised an exception, and the world can go on.
            LostWorld: The ranks can't go on, for example because one hangs.
        """
        done = dict.fromkeys(range(self.world_size), 0)
        wrong: list[tuple[int, int]] = []
        world = self.world
        try:
            found = world.run(
                function,
                *args,
                timeout=world.timeout + delay,
                on_progress=lambda rank, count, _: done.update({rank: count}),
                on_note=lambda rank, number: wrong.append((number, rank)),
            )
        except WorldError as error:
            number = min(*done.values(), len(examples) - 1)
            self.ran += number + 1
            # A wrong example may have made the ranks hang.
            example = str(examples[min([number, *(number for number, _ in wrong)])])
            if error.in_step:
                raise BrokenRuleError(error.summary, example, error=error) from error
            lost = LostWorld(error, example)
            if wrong:
                lost.came_after(f"rank {min(wrong)[1]} had a wrong result")
            raise lost from error
        self.ran += len(examples)
        return found

    def expect(
        self, function: Callable[..., list[Any]], trials: Sequence[Trial], delay: float = 0.0
    ) -> None:
        """Run a function on every rank for each trial, and compare the results to the last bit.

        All trials travel in one order, which takes the least time.

        Args:
            function: The function that every rank runs; it returns the list of its results.
            trials: The trials, in order.
            delay: The seconds by which ranks are late on purpose; the timeout is that much longer.

        Raises:
            BrokenRuleError: The results of a trial differ, or a rank raised an exception.
            LostWorld: The ranks can't go on, for example because one hangs.
        """
        on_rank = update_wrapper(partial(compare, function), function)
        tasks: list[list[tuple[Any, list[str]]]] = [[] for _ in range(self.world_size)]
        for trial in trials:
            known = {id(results): results for results in trial.expected}
            digests = {key: [digest(one) for one in results] for key, results in known.items()}
            for of_rank, arg, expected in zip(tasks, trial.args, trial.expected, strict=True):
                of_rank.append((arg, digests[id(expected)]))
        found = self.run(on_rank, tasks, trials, delay)
        first: BrokenRuleError | None = None
        for index, trial in enumerate(trials):
            wrong = {rank: each[index] for rank, each in enumerate(found) if index in each}
            if wrong:
                before = list(self._called)
                differences = [Difference(rank, trial, before, *one) for rank, one in wrong.items()]
                self.wrong += differences[: max(0, _MOST_WRONG - len(self.wrong))]
                told = "\n".join(difference.text for difference in differences)
                first = first or BrokenRuleError(told, str(trial), differences)
            self._called += trial.collectives
        if first is not None:
            raise first
