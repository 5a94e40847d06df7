"""Processes that read ahead give the same batches, and end with the evaluation."""

import contextlib
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from disteval import Leases, UsageError, evaluate, get_dist_backend, predict_all
from disteval.errors import HarnessError, RankError
from disteval.metrics import Accuracy
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.data import load, pickled_for_workers
from suites.helpers.needs import framework, needs
from suites.helpers.thread_world import run_ranks, values

torch: Any = framework("torch")

pytestmark = needs("torch")


class Pair(NamedTuple):
    x: Any
    y: Any


class Samples:
    """Tensors, arrays of many lengths and texts; a few indices misbehave on request."""

    def __init__(self, raises: int = -1, kills: int = -1, locks: int = -1) -> None:
        self.raises, self.kills, self.locks = raises, kills, locks

    def __len__(self) -> int:
        return 50

    def __getitem__(self, index: int) -> Any:
        if index == self.raises:
            raise KeyError("no such row")
        if index == self.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        if index >= self.locks >= 0:
            return threading.Lock()
        tensor = torch.full((3,), float(index))
        large = np.full((97, 97), index, np.uint8)  # goes through shared memory as a batch
        fields = {"ragged": np.arange(index % 4), "text": str(index), "n": index, "large": large}
        return Pair(tensor, fields)


@pytest.mark.usefixtures("without_canary")  # whose samples are read here
def test_leases_are_read_by_processes_that_start_once() -> None:
    class Numbered:
        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> Any:
            return os.getpid(), index % 2

    seen: list[int] = []

    def predict(pids: Any) -> Any:
        seen.extend(np.asarray(pids).tolist())
        return np.tile([0.0, 1.0], (len(pids), 1))

    found = evaluate(
        predict, Numbered(), {"a": Accuracy(counts=True)}, "non_dist", 2, leases=Leases(),
        workers=1,
    )  # fmt: skip
    assert found.metrics["a"]["correct_top1"] == 20
    assert found.leases is not None and found.leases.committed > 1
    assert len(set(seen)) == 1
    assert multiprocessing.active_children() == []


def test_processes_read_the_same_batches_in_order_and_end() -> None:
    state = torch.get_rng_state()
    found = load(Samples(), 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert multiprocessing.active_children() == []
    for one, other in zip(found, load(Samples(), 0), strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert one.rows == other.rows
        for mine, expected in ((one.filled, other.filled), (one.real, other.real)):
            assert type(mine) is Pair
            assert torch.equal(mine.x, expected.x)
            assert mine.y["text"] == expected.y["text"]
            assert mine.y["n"].tolist() == expected.y["n"].tolist()
            assert np.array_equal(mine.y["large"], expected.y["large"])
            assert mine.y["large"].flags.writeable
            rows = zip(mine.y["ragged"], expected.y["ragged"], strict=True)
            assert all(np.array_equal(row, like) for row, like in rows)


def test_a_sample_that_raises_in_a_worker_is_named() -> None:
    def update(outputs: Any, batch: Pair) -> Any:
        return outputs, np.zeros(len(outputs), np.int64)

    backend = get_dist_backend("non_dist")
    with pytest.raises(RankError, match=r"sample 37 .*KeyE") as found:
        evaluate(
            lambda x: x, Samples(raises=37), {"a": Accuracy()}, backend, 8, workers=1, update=update
        )
    assert isinstance(found.value.__cause__, KeyError)
    assert multiprocessing.active_children() == []


def test_a_worker_that_is_killed_is_an_error() -> None:
    # In the main thread torch raises its error at once, wherever that thread is.
    with pytest.raises((HarnessError, RuntimeError), match=r"[wW]orker"):
        load(Samples(kills=37), 1)
    assert multiprocessing.active_children() == []


def test_what_cannot_be_sent_is_refused() -> None:
    message = r"batch with sample 32 can't be sent from a worker process: TypeError.*workers=0"
    with pytest.raises(UsageError, match=message):
        load(Samples(locks=32), 1)
    unpicklable = Samples()
    unpicklable.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"TypeError.*_thread"):
        load(unpicklable, 1)
    assert multiprocessing.active_children() == []


def test_a_memory_mapped_array_is_sent_as_the_name_of_its_file(tmp_path: Path) -> None:
    whole = np.memmap(tmp_path / "numbers", np.float32, "w+", 4096, (10**4, 5))
    whole[:] = np.arange(5 * 10**4).reshape(whole.shape)
    whole.flush()
    for array in (whole, whole[1234:], whole[:, 2], whole[7:9].T, whole[:0]):
        pickled = pickled_for_workers([array])
        assert np.array_equal(pickle.loads(pickled).items[0], array)
        assert len(pickled) < 2000 or not array.flags.forc


SCRIPT = """
import sys
import numpy as np
from disteval import evaluate
from disteval.metrics import Accuracy
import multiprocessing

print("started")

class Samples:
    def __len__(self):
        return 20
    def __getitem__(self, index):
        return np.eye(5)[index % 5], index % 5

result = evaluate(lambda x: x, Samples(), {"a": Accuracy()}, "non_dist", 4, workers=1)
print(result.metrics["a"]["top1"], __file__ == sys.argv[0])
"""


def test_workers_do_not_run_the_main_script_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.stdout == "started\n1.0 True\n", ended.stderr


ENDLESS = """
import multiprocessing, os, signal, time
import numpy as np
from disteval import evaluate

class Samples:
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        return np.zeros(10**5)

def predict(batch):
    worker, = multiprocessing.active_children()
    print(worker.pid, flush=True)
    time.sleep(2)  # the worker is full of batches, and waits
    os.kill(os.getpid(), signal.SIGKILL)

evaluate(predict, Samples(), {}, "non_dist", 32, workers=1)
"""


def test_a_worker_ends_after_its_rank_was_killed() -> None:
    command = [sys.executable, "-c", ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as rank:
        try:
            # The worker holds the other end of this pipe, so it has ended when the pipe has.
            said, _ = rank.communicate(timeout=120)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
    assert said.strip().isdigit()
    assert rank.returncode == -signal.SIGKILL


class Augmented:
    """A data set that draws random numbers for each of its samples."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, number: int) -> dict[str, float]:
        drawn = random.random(), np.random.random(), float(torch.rand(1, dtype=torch.float64))
        return dict(zip(("random", "numpy", "torch"), drawn, strict=True))


@pytest.mark.usefixtures("without_canary")  # whose samples are read here
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 1)])
def test_no_two_workers_of_any_rank_draw_the_same_numbers(ranks: int, workers: int) -> None:
    def rank(backend: ThreadsDist) -> Any:
        return predict_all(lambda batch: batch, Augmented(), backend, 7, workers=workers)

    drawn = values(run_ranks(ranks, rank))[0]
    assert {name: len({*column.tolist()}) for name, column in drawn.items()} == {
        "random": 48, "numpy": 48, "torch": 48
    }  # fmt: skip
