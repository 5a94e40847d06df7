"""The samplers that people have deal samples as docs/coverage.md says, and Coverage notices."""

import json
import sys
from pathlib import Path
from typing import Any

from disteval import UsageError, evaluate
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly
from suites.helpers.thread_world import assert_each_raised, run_ranks

pytestmark = needs("datasets")

SCRIPT = Path(__file__).with_name("samplers.py")
ONCE = list(range(10))

DEALT = {
    "DistributedSampler": ([[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]], [0, 1]),
    "shuffle": ([[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]], [1, 4]),
    "drop_last": ([[0, 3, 6], [1, 4, 7], [2, 5, 8]], "1 missing (9)"),
    "prepare": ([[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 0, 1]], [0, 1]),
    "even_batches=False": ([[0, 1, 6, 7], [2, 3, 8, 9], [4, 5]], []),
    "gather_for_metrics": ([ONCE, [], []], []),
    "gather_for_metrics of a stream": ([ONCE, [], []], []),
    "dispatch_batches=False": ([[*ONCE, 0, 1], [], []], [0, 1]),
    "test": ([[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]], [0, 1]),
    "validate": ([[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]], [0, 1]),
    "predict": ([[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]], []),
    "use_distributed_sampler=False": ([ONCE, ONCE, ONCE], ONCE),
    "Dataset": ([[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]], []),
    "IterableDataset of 6 shards": ([[0, 1, 6, 7], [2, 3, 8], [4, 5, 9]], []),
    "IterableDataset of 4 shards": ([[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]], []),
}
"""The samples of each rank, and those that repeat or the error."""


def test_shares_of_a_data_set_that_is_split_already_are_refused() -> None:
    from datasets import Dataset

    rows = Dataset.from_dict({"x": list(range(9)), "name": list("abcdefghi")})

    def rank(backend: ThreadsDist) -> Any:
        mine = rows.shard(3, backend.rank)
        whole = evaluate(lambda batch: batch["x"], rows, {}, backend, 2)
        return whole.size, evaluate(lambda batch: batch["x"], mine, {}, backend, 2)

    assert_each_raised(run_ranks(3, rank), UsageError, "sample 0")


@needs("accelerate", "pytorch_lightning", "torch_cpu")
def test_what_each_sampler_deals_is_certified_or_refused(tmp_path: Path) -> None:
    done = run_plainly([sys.executable, str(SCRIPT), str(tmp_path / "store")], tmp_path, 120)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert {name for name, *_ in said} == DEALT.keys()
    for name, by_rank, strict, allowed in said:
        dealt, repeated = DEALT[name]
        assert by_rank == dealt, name
        assert strict == ("error" if repeated else 10), name
        assert repeated in allowed if isinstance(repeated, str) else repeated == allowed, name
