"""A group of ranks holds its leases together, and is lost together."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest
from disteval import UsageError
from disteval.cli.elastic_job import ElasticJob, Meeting
from disteval.cli.job import EvalJob
from disteval.leases import Borrower
from disteval.leases.messages import Ask, Commit, Finished
from disteval.worlds.channel.connection import connect

from suites.resume.lending import (
    ALL,
    SETTINGS,
    UNITS,
    add_up,
    certificate,
    hear,
    hello,
    lending,
    lent,
    tell,
    units_of,
    work,
)


def test_groups_of_ranks_hold_their_leases_together() -> None:
    seen: dict[int, list[int]] = {rank: [] for rank in range(4)}

    def member(directory: Path, rank: int) -> Finished:
        with Borrower(directory, rank, SETTINGS, UNITS) as borrower:
            for lease in borrower:
                seen[rank].append(lease.number)
                units = list(range(lease.start, lease.stop))
                borrower.commit(lease, pickle.dumps(units), certificate(*lease[1:]), {})
            return borrower.finish(lambda parts: (add_up(parts), b""))

    with lending(ranks_per_lease=2) as (_, directory), ThreadPoolExecutor(4) as pool:
        found = [pool.submit(member, directory, rank) for rank in range(4)]
        assert all(units_of(each.result(60)) == ALL for each in found)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]


def test_a_group_that_lost_a_rank_is_lost() -> None:
    with lending(ranks_per_lease=2) as (lender, directory), ThreadPoolExecutor(3) as pool:
        with connect(directory) as dying:
            left = pool.submit(work, directory, 1)
            lent(dying, 0)
        others = [pool.submit(work, directory, rank) for rank in (2, 3)]
        assert all(units_of(each.result(60)) == ALL for each in [left, *others])
        assert [text[:6] for text in lender.report.lost] == ["rank 0"]


def test_the_ranks_of_one_group_count_once_where_they_raise_at_one_unit() -> None:
    with lending(ranks_per_lease=3, timeout=1.0) as (lender, directory):
        with ThreadPoolExecutor(3) as pool:
            raising = [Borrower(directory, rank, SETTINGS, UNITS) for rank in range(3)]
            begun = [pool.submit(next, iter(each)) for each in raising]
            assert {each.result(30).start for each in begun} == {0}
            for each in raising:
                each.fail(0, "failed at sample 0")
            others = [pool.submit(work, directory, rank) for rank in (3, 4, 5)]
            assert all(units_of(each.result(60)) == ALL for each in others)
        assert len(lender.report.failed) == 3
        for each in raising:
            each.finish(add_up)


def test_ranks_of_a_group_that_counted_other_samples_are_an_error() -> None:
    with lending(ranks_per_lease=2) as (lender, directory):
        with connect(directory) as one, connect(directory) as two:
            for rank, each in enumerate((one, two)):
                tell(each, hello(rank))
                hear(each)
                tell(each, Ask())
            for count, each in enumerate((one, two)):
                number = hear(each).number
                tell(each, Commit(number, b"", (count, count), {}))
            assert lender.wait(30)
        assert lender.outcome is not None
        assert "evaluated different samples" in str(pickle.loads(lender.outcome.error or b""))


def test_a_group_of_ranks_on_another_host_is_refused_with_a_remedy(tmp_path: Path) -> None:
    job = cast(EvalJob, None)
    meeting = Meeting(tmp_path, "")
    near = ElasticJob(job, meeting, 3, 4, False, 2, tmp_path)
    assert near.group().path.is_dir()
    far = ElasticJob(job, meeting, 3, 4, False, 2, tmp_path / "missing")
    with pytest.raises(UsageError, match=r"rank 3 runs on the host .* --join on their own host"):
        far.group()
