"""Exact means numbers and contents: ranks that hold other samples get no result that is exact."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import ByLength, Coverage, CoverageError, Evaluation, Leases, UsageError, evaluate
from disteval.data import ShardedStream
from disteval.metrics import Mean
from disteval_backends.threads_dist import ThreadsDist
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.thread_world import assert_each_raised, run_ranks, values
from suites.properties.cases import Indexed, Stream

SIZE = 1000
Row = dict[str, Any]


def columns(rows: list[Row]) -> dict[str, Any]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def shards(rows: list[Row]) -> ShardedStream:
    return ShardedStream(range(5), lambda shard: iter(rows[200 * shard : 200 * (shard + 1)]))


KINDS: dict[str, Callable[[list[Row]], Any]] = {
    "list": list, "columns": columns, "dataset": Indexed, "shards": shards, "stream": Stream,
}  # fmt: skip


def rows(size: int = SIZE) -> list[Row]:
    return [{"x": float(i), "label": i % 7} for i in range(size)]


def on_ranks(world: int, make: Callable[[int], Any], **given: Any) -> list[Any]:
    """Evaluate what ``make(rank)`` returns on each rank, and return results or errors."""

    def rank(backend: ThreadsDist) -> Any:
        return evaluate(
            lambda batch: batch["x"], make(backend.rank), {"mean": Mean()}, backend,
            **{"batch_size": 16, "update": lambda outputs, batch: (outputs,), **given},
        )  # fmt: skip

    return run_ranks(world, rank)


def reversed_on_rank_1(kept: list[Row]) -> list[Row]:
    return kept[::-1]


def other_labels(kept: list[Row]) -> list[Row]:
    return [row | {"label": 6 - row["label"]} for row in kept]


def shuffled(kept: list[Row]) -> list[Row]:
    return [kept[i] for i in np.random.default_rng(1).permutation(len(kept))]


def another_revision(kept: list[Row]) -> list[Row]:
    return [row | {"x": row["x"] + 1e-9} for row in kept]


@pytest.mark.parametrize("wrong", [reversed_on_rank_1, other_labels, shuffled, another_revision])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_hold_other_samples_are_refused_on_every_rank(
    kind: str, wrong: Callable[[list[Row]], list[Row]]
) -> None:
    leases = None if kind == "stream" or wrong is shuffled else Leases()
    outcomes = on_ranks(
        3, lambda rank: KINDS[kind](wrong(rows()) if rank == 1 else rows()), leases=leases
    )
    for error in outcomes:
        assert isinstance(error, UsageError)
        assert str(error) == str(outcomes[0])
        assert "rank 1" in str(error) or "ranks 0 and 1" in str(error)
        assert any(word in str(error) for word in ("sample ", "element "))


@pytest.mark.parametrize("kind", ["list", "columns", "stream"])
@settings(max_examples=5)
@given(st.lists(st.integers(0, SIZE - 1), min_size=2, max_size=2, unique=True))
def test_two_swapped_samples_are_named_where_all_are_compared(kind: str, places: list[int]) -> None:
    one, other = sorted(places)

    def make(rank: int) -> Any:
        kept = rows()
        if rank == 1:
            kept[one], kept[other] = kept[other], kept[one]
        return KINDS[kind](kept)

    for error in on_ranks(2, make):
        assert isinstance(error, UsageError)
        assert f"sample {one} " in str(error) or f"element {one} " in str(error)


def test_columns_with_a_collate_of_ones_own_are_compared_as_the_samples_it_gets() -> None:
    for found in values(on_ranks(2, lambda _: columns(rows()), collate=columns)):
        assert (found.coverage, found.compared) == ("exact", SIZE)


def test_what_only_the_digest_shows_is_not_called_exact() -> None:
    (alone,) = values(on_ranks(1, lambda _: Indexed(rows())))
    assert (alone.coverage, alone.compared) == ("exact", 0)

    def make(rank: int) -> Any:
        kept = rows()
        if rank == 1:  # two that ranks 0 and 1 evaluate, and that nobody compares
            kept[500], kept[501] = kept[501], kept[500]
        return Indexed(kept)

    for found in values(on_ranks(2, make)):
        assert (found.coverage, found.compared) == ("by index", 32)
        assert found.digest != alone.digest


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "shards"])
def test_a_digest_depends_on_the_contents_alone(kind: str) -> None:
    size = 203
    seen = {
        found.digest
        for world, batch, leases in itertools.product((1, 2, 3), (5, 64), (None, Leases()))
        if not (kind == "stream" and leases is not None)
        for found in values(
            on_ranks(world, lambda _: KINDS[kind](rows(size)), batch_size=batch, leases=leases)
        )
    }
    sorted_too = values(
        on_ranks(2, lambda _: KINDS[kind](rows(size)), by_length=ByLength(lambda row: row["label"]))
    )
    assert len(seen) == 1
    assert {found.digest for found in sorted_too} == seen
    assert not {None} & seen
    for change in (other_labels, reversed_on_rank_1, another_revision):
        (other,) = values(on_ranks(1, lambda _, c=change: KINDS[kind](c(rows(size)))))
        assert other.digest not in seen


def test_shards_have_one_digest_on_any_number_of_ranks() -> None:
    seen = {
        found.digest
        for world, leases in itertools.product((1, 2, 3), (None, Leases()))
        for found in values(on_ranks(world, lambda _: shards(rows()), leases=leases))
    }
    assert len(seen) == 1


def test_bytes_of_long_doubles_that_are_not_set_do_not_count() -> None:
    if np.finfo(np.longdouble).nmant != 63:
        pytest.skip("the long doubles of this processor have no bytes that are not set")

    def rank(rows: bool, backend: ThreadsDist) -> Evaluation:
        numbers = np.arange(40, dtype=np.longdouble)
        numbers.view(np.uint8).reshape(40, -1)[:, 10:] = backend.rank
        samples = (numbers, np.arange(40)) if rows else [(number, 1) for number in numbers]
        metrics = {"mean": Mean()}
        return evaluate(
            lambda x: np.asarray(x, float), samples, metrics, backend, 8,
            update=lambda outputs, batch: (outputs,),
        )  # fmt: skip

    for rows in (True, False):
        found = values(run_ranks(2, partial(rank, rows)))
        assert [each.compared for each in found] == [40] * 2
        assert (
            len({each.digest for each in [*found, *values(run_ranks(1, partial(rank, rows)))]}) == 1
        )


def test_paths_are_compared_by_the_files_that_they_lead_to(tmp_path: Path) -> None:
    def mounted(rank: int, form: Callable[[Path], Any], last: bytes) -> Any:
        folder = tmp_path / f"host{rank}"
        folder.mkdir(exist_ok=True)
        for number in range(40):
            content = last if (rank, number) == (1, 10) else b"picture %d" % number
            (folder / f"{number}.png").write_bytes(content)
        return [(form(folder / f"{number}.png"), number) for number in range(40)]

    def run(form: Callable[[Path], Any], last: bytes) -> list[Any]:
        def rank(backend: ThreadsDist) -> Any:
            samples = mounted(backend.rank, form, last)
            return evaluate(
                lambda paths: np.array([Path(p).stat().st_size for p in paths]), samples,
                {"mean": Mean()}, backend, 8, update=lambda outputs, batch: (outputs,),
            )  # fmt: skip

        return run_ranks(2, rank)

    for form in (str, Path):
        same = values(run(form, b"picture 10"))
        assert same[0].digest is not None
        assert same[0].compared == 32
    outcomes = [run(str, b"another"), run(Path, b"another")]
    for found in itertools.chain(*outcomes):
        other = isinstance(found, Evaluation) and found.digest != same[0].digest
        assert other or isinstance(found, UsageError)


class Opened:
    """A sample that can't be pickled."""

    def __init__(self, number: int) -> None:
        self.number, self.lock = number, threading.Lock()


class Measured:
    """A sample with a function of its own, which another rank may have otherwise."""

    def __init__(self, number: int, rank: int) -> None:
        self.number, self.measure = number, (lambda: rank) if number == 21 else abs


@pytest.mark.parametrize("size", [30, 40])
@pytest.mark.parametrize(("made", "words"), [(Opened, ("sample 0", "lock")), (Measured, ("21",))])
def test_samples_that_cannot_be_compared_are_not_called_exact(
    made: Any, words: Sequence[str], size: int, caplog: pytest.LogCaptureFixture
) -> None:
    def make(rank: int) -> Any:
        return [made(i, *[rank] * (made is Measured)) for i in range(size)]

    with caplog.at_level(logging.WARNING, "disteval"):
        outcomes = on_ranks(2, make, collate=lambda s: {"x": np.array([each.number for each in s])})
    for found in values(outcomes):
        assert (found.coverage, found.compared, found.digest) == ("by index", 0, None)
    assert all(word in caplog.text for word in words)


@pytest.mark.parametrize("name", ["b", "c"])
def test_shards_are_compared_by_their_names_within_their_folder(name: str, tmp_path: Path) -> None:
    """The files may be large, and hosts may mount the folder elsewhere: only `open` reads them."""

    def make(rank: int) -> ShardedStream:
        folder = tmp_path / str(rank)
        folder.mkdir(exist_ok=True)
        for each in ("a", "b", "c"):
            (folder / each).write_text(str(rank))
        other = name if rank else "b"
        paths = [folder / "a", str(folder / other)]
        return ShardedStream(paths, lambda path: iter(rows()[: 9 + (Path(path).name == "a")]))

    for outcome in on_ranks(2, make):
        assert isinstance(outcome, Evaluation if name == "b" else UsageError)
        assert getattr(outcome, "size", 19) == 19


def test_digests_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTEVAL_DIGEST", "off")
    for kind in KINDS.values():
        for world in (1, 2):
            for found in values(on_ranks(world, lambda _, k=kind: k(rows()))):
                assert found.metrics["mean"]["mean"] == 499.5
                assert (found.coverage, found.compared, found.digest) == ("by index", 0, None)


def own_loop(
    backend: ThreadsDist, kept: list[Row], batch_size: int, digest: str | None = None
) -> Any:
    coverage = Coverage(SIZE, backend)
    mine = range(backend.rank, SIZE, backend.world_size)
    for start in range(0, len(mine), batch_size):
        ids = mine[start : start + batch_size]
        coverage.count(ids, contents=columns([kept[i] for i in ids]))
    return coverage.certify(digest=digest)


def test_a_loop_of_ones_own_proves_contents_by_a_digest() -> None:
    (alone,) = values(run_ranks(1, lambda backend: own_loop(backend, rows(), 16)))
    assert alone.coverage == "exact"
    for world, batch_size in ((2, 7), (3, 100)):
        found = values(
            run_ranks(world, lambda b, n=batch_size: own_loop(b, rows(), n, alone.digest))
        )
        assert {(one.coverage, one.digest) for one in found} == {("exact", alone.digest)}
        found = values(run_ranks(world, lambda b, n=batch_size: own_loop(b, rows(), n)))
        assert {(one.coverage, one.digest) for one in found} == {("by index", alone.digest)}
    for wrong in (reversed_on_rank_1, other_labels, shuffled, another_revision):

        def rank(backend: ThreadsDist, wrong: Any = wrong) -> Any:
            kept = wrong(rows()) if backend.rank == 1 else rows()
            return own_loop(backend, kept, 16, alone.digest)

        assert_each_raised(run_ranks(3, rank), CoverageError, str(alone.digest))


def test_repeated_samples_must_have_the_same_contents_on_all_ranks() -> None:
    def rank(backend: ThreadsDist, *, change: float) -> Any:
        coverage = Coverage(10, backend)
        ids = np.array([[0, 1, 2, 3, 4, 9], [5, 6, 7, 8, 9, 0]][backend.rank])
        coverage.count(ids, contents=ids + (ids == 9) * backend.rank * change)
        return coverage.certify("allowed")

    found = values(run_ranks(2, lambda backend: rank(backend, change=0.0)))
    (alone,) = values(
        run_ranks(1, lambda backend: _counted_alone(backend, np.arange(10).astype(float)))
    )
    assert {one.digest for one in found} == {alone.digest}
    assert_each_raised(
        run_ranks(2, lambda backend: rank(backend, change=0.5)), CoverageError, "sample 9 "
    )


def _counted_alone(backend: ThreadsDist, held: Any) -> Any:
    coverage = Coverage(len(held), backend)
    coverage.count(np.arange(len(held)), contents=held)
    return coverage.certify()


def test_a_loop_without_contents_proves_numbers_alone() -> None:
    def rank(backend: ThreadsDist) -> Any:
        coverage = Coverage(4, backend)
        coverage.count([0, 1], contents=np.zeros(2))
        coverage.count([2, 3])
        return coverage.certify()

    (found,) = values(run_ranks(1, rank))
    assert (found.coverage, found.digest) == ("by index", None)


def test_contents_need_a_row_for_each_id() -> None:
    for contents in (np.zeros(3), 5, {"x": [1, 2], "y": [1]}, [Opened(1), Opened(2)]):
        with pytest.raises(UsageError, match="contents"):
            Coverage(4, "non_dist").count([0, 1], contents=contents)
