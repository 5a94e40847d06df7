"""Any prefix of an evaluation and a resume are the whole one, with ranks lost on the way."""

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import (
    Leases,
    Predictions,
    RankError,
    WorldError,
    evaluate,
    get_dist_backend,
    load_predictions,
)
from disteval.conformance.bench import Bench
from disteval.metrics import Accuracy
from disteval.world import World
from hypothesis import strategies as st

from suites.properties.cases import (
    OF_ROWS,
    RIGHT,
    SAMPLES,
    SCORES,
    Model,
    Numbers,
    error_of,
    rows,
    scored,
)  # fmt: skip
from suites.properties.conftest import Each, switch_canary
from suites.properties.test_exactly_once import BY_LENGTH

pytestmark = pytest.mark.usefixtures("without_canary")

SIZE = 24
WHOLE = list(range(SIZE)), int(RIGHT[:SIZE].sum()), list(range(SIZE))


class PowerError(Exception):
    """The end of an evaluation before its time."""


def calls_until(count: int, end: Callable[[], None]) -> Iterator[None]:
    """Yield for so many calls of a model, and then end what it is part of."""
    for _ in range(count):
        yield
    end()


def fail() -> None:
    raise PowerError("the power is gone")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Ending(Model):
    """A model that ends before its time; it is the same model when the evaluation goes on."""

    def __init__(self, count: int = 2 * SIZE, end: Callable[[], None] = fail) -> None:
        super().__init__()
        self.left = calls_until(count, end)

    def __call__(self, batch: Any) -> Any:
        next(self.left)
        return super().__call__(batch)


def go_on(
    model: Model, samples: Any, folder: Path, backend: Any, batch_size: int, leases: Any,
    has_ledger: bool = True, format: Any = "jsonl", **plan: Any,  # noqa: A002
) -> Any:  # fmt: skip
    """Evaluate what is left; return the numbers and the sum of all samples, and the stored."""
    found = evaluate(
        model, samples, {"numbers": Numbers(), "accuracy": Accuracy(counts=True)}, backend,
        batch_size, update={"accuracy": scored}, leases=leases,
        ledger=folder / "ledger" if has_ledger else None,
        predictions=format and Predictions(folder / "predictions", format, rows_per_part=3), **plan,
    )  # fmt: skip
    return (found.metrics["numbers"], found.metrics["accuracy"]["correct_top1"]), found.stored


def new_folder(backend: Any, within: Path) -> Path:
    """Return a new folder, the same on every rank."""
    made = tempfile.mkdtemp(dir=within) if backend.rank == 0 else None
    return Path(backend.broadcast_object(made, src=0))


class Run(NamedTuple):
    """How one of two runs evaluates: on rank 0 alone, or on every rank."""

    is_alone: bool
    batch_size: int
    leases: Any
    plan: dict[str, Any]

    def go_on(self, backend: Any, model: Model, samples: Any, folder: Path, *kept: Any) -> Any:
        """Return what `go_on` returns, on every rank; None if the evaluation failed."""
        found = None
        if backend.rank == 0 or not self.is_alone:
            joining = get_dist_backend("non_dist") if self.is_alone else backend
            with contextlib.suppress(RankError):
                found = go_on(
                    model, samples, folder, joining, self.batch_size, self.leases, *kept,
                    **self.plan,
                )  # fmt: skip
        return backend.all_gather_object(found)[0 if self.is_alone else backend.rank]


def resumed(kind: str, within: Path, backend: Any, drawn: Any) -> Any:
    calls, first, second, kept = drawn
    samples = SAMPLES[kind](SIZE, "numpy")
    folder = new_folder(backend, within)
    model = Ending()
    ended = first.go_on(backend, Ending(calls), samples, folder, *kept)
    found, stored = ended or second.go_on(backend, model, samples, folder, *kept)
    again = set().union(*backend.all_gather_object(model.seen))
    written = WHOLE[2]
    if kept[1] is not None:
        written = backend.all_gather_object(None if backend.rank else numbers_in(folder))[0]
    # A lease of shards has whole ones.
    has_units = calls > 0 and not (kind == "shards" and first.leases is not None)
    is_right = len(again) == (0 if ended else SIZE - stored)
    return (*found, written), is_right, stored > 0 or not has_units or not again


def numbers_in(folder: Path) -> list[int]:
    """Return the numbers of the samples whose predictions are in a folder, in order."""
    found = load_predictions(folder / "predictions").all()
    assert np.asarray(found["scores"]).tobytes() == (2 * SCORES[:SIZE]).tobytes()
    return [*map(int, found["number"])]


@pytest.mark.parametrize("kind", SAMPLES)
def test_an_interrupted_evaluation_ends_as_a_whole_one(
    each: Each, kind: str, tmp_path: Path
) -> None:
    """At any world size, in any batches, under either schedule, by ledger, predictions, or both.

    Nothing that is stored is computed again.
    """
    schedules = st.sampled_from([None] if kind == "stream" else [None, Leases()])
    options = {"even_calls": st.none() | st.just(False), "fixed_shape": st.booleans()}
    options |= {} if kind == "columns" else {"by_length": st.none() | BY_LENGTH}
    runs = st.builds(
        Run, st.booleans(), st.integers(1, 5), schedules, st.fixed_dictionaries(options)
    )
    kept = st.tuples(st.booleans(), st.sampled_from([None, "jsonl", "npy"])).filter(any)
    each(
        st.tuples(st.integers(0, 8), runs, runs, kept),
        partial(resumed, kind, tmp_path),
        lambda _: (WHOLE, True, True),
        split=25,
    )  # fmt: skip


def left_to_others(backend: Any, drawn: tuple[int, int, int]) -> Any:
    guilty, calls, batch_size = drawn
    fails = backend.rank == 1 + guilty % (backend.world_size - 1)
    found = evaluate(
        Ending(calls if fails else SIZE), rows(SIZE),
        {"numbers": Numbers(), "accuracy": Accuracy(counts=True)}, backend, batch_size,
        update={"accuracy": scored}, leases=Leases(),
    )  # fmt: skip
    return found.metrics["numbers"], found.metrics["accuracy"]["correct_top1"]


@pytest.mark.world_sizes(2, 3)
def test_a_rank_that_fails_leaves_its_samples_to_the_others(each: Each) -> None:
    """In leases, where it has the result of all ranks in the end."""
    each(
        st.tuples(st.integers(0, 7), st.integers(0, 5), st.integers(1, 4)),
        left_to_others,
        lambda _: WHOLE[:2],
        split=10,
    )


def killed(folder: Path, leases: Any, backend: Any, calls: int) -> None:
    switch_canary(backend, "off")
    go_on(Ending(calls, kill), rows(SIZE), folder, backend, 2, leases)


def ended(folder: Path, leases: Any, backend: Any) -> Any:
    model = Ending()
    found, stored = go_on(model, rows(SIZE), folder, backend, 2, leases)
    again = set().union(*backend.all_gather_object(model.seen))
    return found, len(again) + stored, stored


@pytest.mark.parametrize("leases", [None, Leases()])
def test_killed_ranks_cost_time_and_change_no_result(
    worlds: Bench, world: World, leases: Any, tmp_path: Path
) -> None:
    """Ranks that are killed in a call leave what they had finished, and others go on with it."""
    if not (worlds.session.can_start and world.own_processes):
        pytest.skip("ranks that may be killed are needed: processes that are started here")
    with worlds.fresh() as lost, pytest.raises(WorldError) as caught:
        # So few calls that not all batches are done before a rank is killed.
        calls = [2 + rank % 2 for rank in range(world.world_size)]
        lost.world.run(partial(killed, tmp_path, leases), *calls)
    assert caught.value.lost
    found = world.run(partial(ended, tmp_path, leases))
    [(result, samples, stored)] = {repr(each): each for each in found}.values()
    assert (result, samples) == (WHOLE[:2], SIZE)
    assert stored >= 2, "what the first rank to be killed had finished is lost"
    assert numbers_in(tmp_path) == WHOLE[0]


def changed(kind: str, within: Path, backend: Any, drawn: tuple[int, int, str]) -> Any:
    one, other, leases = drawn
    before = rows(SIZE)
    after = [*before[:one], before[other], *before[one + 1 :]]
    wrap = OF_ROWS[kind]
    folder = new_folder(backend, within)
    with contextlib.suppress(RankError):
        go_on(Ending(2), wrap(before), folder, backend, 2, leases)
    backend.all_gather_object(None)
    return error_of(backend, lambda: go_on(Ending(), wrap(after), folder, backend, 2, leases))[0]


PLACES = {"shards": [*range(4), *range(12, 20)], "stream": [*range(4)]}
"""Of shards, the first elements of four are compared, and those of shards that are read again; of a
stream, what was evaluated, for which all of it is read again."""


@pytest.mark.parametrize("kind", OF_ROWS)
def test_going_on_over_other_samples_is_refused(each: Each, kind: str, tmp_path: Path) -> None:
    """Where one sample is another since; of more than 32 that are read one by one, some are."""
    one = st.sampled_from(PLACES.get(kind, [*range(SIZE)]))
    places = st.tuples(one, st.integers(0, SIZE - 1)).filter(lambda pair: pair[0] != pair[1])
    schedules = [None] if kind == "stream" else [None, Leases()]
    each(
        st.tuples(places, st.sampled_from(schedules)).map(lambda d: (*d[0], d[1])),
        partial(changed, kind, tmp_path),
        lambda _: "RankError" if kind == "stream" else "UsageError",
        split=25,
    )
