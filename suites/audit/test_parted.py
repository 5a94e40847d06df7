"""An audit names the first call of torch.distributed at which gloo ranks parted."""

import re
from pathlib import Path
from typing import Any

import pytest
from disteval import WorldError
from disteval.world import World

from suites.helpers.audits import audited, shorten_first_calls
from suites.helpers.needs import framework, needs
from suites.helpers.traces import read_worlds

framework("torch")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

pytestmark = needs("torch")


@pytest.mark.parametrize(
    ("name", "call", "elements", "others"),
    [
        ("calls_another", "all_reduce", 2, "all_gather"),
        ("skips_one", "all_reduce", 2, "broadcast"),
        ("sends_more", "all_reduce", 3, "all_reduce"),
    ],
)
def test_the_finding_names_the_call(
    name: str, call: str, elements: int, others: str, monkeypatch: Any
) -> None:
    shorten_first_calls(monkeypatch)
    report = audited(f"suites.audit.ends:{name}", timeout=6.0, case="N=2,B=1,W=3")
    found = report.findings[0]
    assert found.kind == "hangs"
    # Ranks that the others have let go on are not in the call any more.
    parted = (
        rf"rank 1 .* {call} #2 \({elements} float64\), ranks 0 and 2 .* {others} #2 \(2 float64"
    )
    assert re.search(parted, found.sentence), found.sentence
    assert re.search(parted, found.message)


@needs("accelerate", "torchmetrics")
@pytest.mark.parametrize(
    ("name", "waits", "call"),
    [
        ("objects_gathered_in_each_batch", "all_gather_object", "all_gather #"),
        ("torchmetrics_of_ranks_with_samples", "barrier", "barrier #"),
    ],
)
def test_the_call_that_a_library_made_is_named(name: str, waits: str, call: str) -> None:
    target = f"suites.audit.accelerate_loops:{name}"
    found = audited(target, timeout=60.0, case="N=1,B=1,W=2").findings[0]
    parted = rf"rank 0 .* {waits} \(accelerate_loops\.py, .*rank 0 .* {call}.*, rank 1 "
    assert (found.kind, bool(re.search(parted, found.sentence))) == ("crashes", True), found


def calls_all_that_is_right_and_fails(_: Any) -> None:
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    mine = torch.full((rank + 1,), 1.0)
    dist.gather(mine[:1], [torch.zeros(1) for _ in ranks] if rank == 0 else None)
    dist.scatter(torch.zeros(2), [torch.zeros(2) for _ in ranks] if rank == 2 else None, src=2)
    # Rank r has r + 1 elements, and they all go to rank 0.
    got = torch.zeros(6 if rank == 0 else 0)
    dist.all_to_all_single(got, mine, [1, 2, 3] if rank == 0 else [0, 0, 0], [rank + 1, 0, 0])
    dist.all_gather_object([None for _ in ranks], "x" * rank)
    if rank < 2:
        dist.send(mine[:1], 1) if rank == 0 else dist.recv(mine[:1], 0)
    first_two = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(mine[:1].clone(), group=first_two)
    dist.all_reduce(torch.ones(1, 2) if rank else torch.ones(2), async_op=True).wait()
    dist.barrier()
    raise ValueError(f"rank {rank}")


def waits_for_rank_1(_: Any) -> None:
    dist.all_reduce(torch.ones(1, dtype=torch.int64))
    if dist.get_rank() == 1:
        raise ValueError("no samples")
    dist.barrier()


def test_ranks_that_make_the_same_calls_have_not_parted(tmp_path: Path) -> None:
    with World("torch_cpu", 3, trace=tmp_path) as world:
        for _ in range(2):
            with pytest.raises(WorldError) as caught:
                world.run(calls_all_that_is_right_and_fails)
            assert caught.value.in_step
            assert "parted in" not in str(caught.value)
            world.join("torch_cpu")
        with pytest.raises(WorldError) as caught:
            world.run(waits_for_rank_1, timeout=3.0)
    assert re.search(r"rank 1 .* all_reduce #1 \(1 int64", str(caught.value))

    [seen_world] = read_worlds(tmp_path)
    named = "torch", "all_to_all #3 (float32)"
    calls = [[(e.category, e.name) for e in row.events] for row in seen_world.ranks]
    seen = [of_rank.count(named) for of_rank in calls]
    assert seen == [2, 2, 2]
