"""A sampler alone is tried in all small cases, without ranks."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError
from disteval.audit import audit_sampler

from suites.helpers.command import invoke


def strided(size: int, world_size: int, rank: int) -> Any:
    return range(rank, size, world_size)


def shuffled_batches(size: int, world_size: int, rank: int, batch_size: int, epoch: int) -> Any:
    order = random.Random(epoch).sample(range(size), size)
    return [order[at : at + batch_size] for at in range(0, size, batch_size)][rank::world_size]


def padded(size: int, world_size: int, rank: int) -> Any:
    return [at % size for at in range(rank, -(-size // world_size) * world_size, world_size)]


def drops_the_tail(size: int, world_size: int, rank: int) -> Any:
    return [*strided(size, world_size, rank)][: size // world_size]


def shuffled_by_rank(size: int, world_size: int, rank: int, seed: int) -> Any:
    return random.Random(seed + rank).sample(range(size), size)[rank::world_size]


def joins_the_last_two_batches(size: int, world_size: int, rank: int, batch_size: int) -> Any:
    whole = size // batch_size * batch_size if batch_size == 7 else size
    return range(rank, whole, world_size)


@pytest.mark.parametrize(("sampler", "told"), [(strided, 1), (shuffled_batches, 2)])
def test_a_right_sampler_is_sound_and_its_notes_say_what_to_know(sampler: Any, told: int) -> None:
    report = audit_sampler(sampler, (1, 2, 5))
    assert (report.verdict, len(report.warnings)) == ("sound", told)


@pytest.mark.parametrize(
    ("sampler", "found"),
    [
        (padded, [("counted twice", "N=1,B=1,W=2")]),
        (drops_the_tail, [("dropped", "N=1,B=1,W=2")]),
        (shuffled_by_rank, [("counted twice", "N=2,B=1,W=2"), ("dropped", "N=2,B=1,W=2")]),
        (joins_the_last_two_batches, [("dropped", "N=1,B=7,W=1")]),
        (lambda size, ranks, rank: [rank], [("not in the data set", "N=0,B=1,W=1")]),
        (lambda size, ranks, rank: itertools.repeat(0), [("crashes", "N=0,B=1,W=1")]),
        (lambda size, ranks, rank: [1 // size], [("crashes", "N=0,B=1,W=1")]),
    ],
)
def test_a_wrong_sampler_is_convicted_in_its_smallest_case(
    sampler: Callable[..., Any], found: list[tuple[str, str]]
) -> None:
    report = audit_sampler(sampler, (1, 2))
    assert report.verdict == "wrong"
    assert [(each.kind, each.where) for each in report.findings][: len(found)] == found


@pytest.mark.parametrize(
    "sampler", [lambda size: [], lambda size, ranks, rank: 3.5, lambda *_: [["a"]]]
)
def test_what_is_no_sampler_is_refused(sampler: Any) -> None:
    with pytest.raises(UsageError):
        audit_sampler(sampler)


def test_the_command_replays_and_refuses_options_of_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    name = f"{__name__}:padded"
    done = invoke("audit", "--sampler", name, "--json=r.json")
    assert done.exit_code == 1 and "dealt 2 times" in (tmp_path / "r.json").read_text()
    replayed = f"audit {name} --sampler --case N=1,B=1,W=2"
    assert replayed in " ".join(done.output.split())
    assert "1 case was tried" in invoke(*replayed.split()).output
    refused = invoke("audit", "--sampler", name, "--backend=threads")
    assert (refused.exit_code, "--backend" in refused.output) == (2, True)
