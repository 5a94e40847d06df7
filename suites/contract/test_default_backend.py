"""One of several processes does not answer for itself where nobody chose a backend."""

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from disteval import (
    UsageError,
    default_backend,
    evaluate,
    get_dist_backend,
    set_default_dist_backend,
)
from disteval.metrics import Accuracy, Mean, MetricGroup
from disteval_backends.threads_dist import ThreadsDist

from suites.evaluation.test_evaluate import numbered, read_label
from suites.helpers.faults import add_instance, forget_default
from suites.helpers.thread_world import run_ranks, values
from suites.properties.cases import Entries

JOBS = {
    "torchrun": {"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "WORLD_SIZE": "3"},
    "mpirun": {"PMI_RANK": "1", "PMI_SIZE": "3"},
    "horovodrun": {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "3"},
    "srun": {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"},
    "paddle.distributed.launch": {"PADDLE_TRAINER_ID": "1", "PADDLE_TRAINERS_NUM": "3"},
}


@pytest.fixture
def started_by(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    def start(launcher: str) -> None:
        for name, value in JOBS[launcher].items():
            monkeypatch.setenv(name, value)

    yield start
    default_backend.set_group_of_world(None)


def mean_of(value: float, **options: Any) -> Mean:
    metric = Mean(**options)
    metric.add([value])
    return metric


def mean_in_group() -> Any:
    group = MetricGroup({"mean": Mean()})
    group.add([1.0])
    return group.compute()


def gathered() -> Any:
    metric = Entries()
    metric.add([1.0])
    return metric.compute()


def evaluated() -> Any:
    return evaluate(read_label, numbered(3), {"accuracy": Accuracy()})


@pytest.mark.parametrize("launcher", JOBS)
@pytest.mark.parametrize(
    "compute", [lambda: mean_of(1.0).compute(), mean_in_group, gathered, evaluated]
)
def test_a_process_that_a_launcher_started_with_others_refuses_with_the_line_to_add(
    launcher: str, compute: Callable[[], Any], started_by: Callable[[str], None]
) -> None:
    started_by(launcher)
    with pytest.raises(UsageError, match=f"{launcher} .*3 .*rank 1") as caught:
        compute()
    lines = {
        "mpirun": "disteval.set_default_dist_backend('mpi4py')",
        "horovodrun": "horovod.tensorflow.init()",
        "paddle.distributed.launch": "paddle.distributed.init_parallel_env()",
        "srun": "disteval.set_default_dist_backend('mpi4py')",
    }
    joins = lines.get(launcher, "torch.distributed.init_process_group('gloo')")
    stays_alone = "disteval.set_default_dist_backend('non_dist')"
    assert (joins in str(caught.value), stays_alone in str(caught.value)) == (True, True)


def test_a_backend_that_was_chosen_is_taken(started_by: Callable[[str], None]) -> None:
    started_by("torchrun")
    alone = get_dist_backend("non_dist")
    for metric in (mean_of(2.0, dist_backend="non_dist"), mean_of(2.0, dist_backend=alone)):
        assert metric.compute() == {"mean": 2.0}
        assert MetricGroup({"mean": metric}).compute() == {"mean": {"mean": 2.0}}


def test_a_chosen_backend_that_joins_nothing_is_refused(started_by: Callable[[str], None]) -> None:
    started_by("torchrun")
    with pytest.raises(UsageError, match=r"torchrun.*ThreadsDist"):
        mean_of(1.0, dist_backend="threads").compute()


def test_a_backend_that_does_not_see_its_launchers_ranks_is_refused(
    started_by: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class OtherMpi(ThreadsDist):
        launcher, is_initialized = "mpirun", True  # type: ignore[assignment]

    started_by("mpirun")
    add_instance(monkeypatch, "other_mpi", OtherMpi())
    with pytest.raises(UsageError, match=r"mpirun .*OtherMpi"):
        mean_of(1.0, dist_backend="other_mpi").compute()
    # A group of one rank may be what a caller wants, who made it.
    assert mean_of(1.0, dist_backend=OtherMpi()).compute() == {"mean": 1.0}


def test_one_process_is_alone_under_a_launcher_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "1")
    assert mean_of(2.0).compute() == {"mean": 2.0}


def test_the_group_that_exists_when_results_are_computed_is_taken() -> None:
    metrics = [mean_of(float(rank)) for rank in range(3)]
    groups = [MetricGroup({"mean": mean_of(float(rank))}) for rank in range(3)]

    def rank(backend: ThreadsDist) -> Any:
        default_backend.set_group_of_world(backend)
        mean = metrics[backend.rank].compute()
        return mean, groups[backend.rank].compute()

    assert values(run_ranks(3, rank)) == [({"mean": 1.0}, {"mean": {"mean": 1.0}})] * 3


def test_two_groups_are_ambiguous(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group(ThreadsDist):
        is_initialized, rank, world_size = True, 1, 3  # type: ignore[assignment]

    for name in ("first", "second"):
        add_instance(monkeypatch, name, Group())
    with pytest.raises(UsageError, match="more than one") as caught:
        mean_of(1.0).compute()
    for name in ("first", "second"):
        assert f"{name} (rank 1 of 3)" in str(caught.value)


def test_looking_for_a_group_imports_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    assert mean_of(2.0).compute() == {"mean": 2.0}
    # A library that is imported and has no group is not asked for more.
    monkeypatch.setitem(
        sys.modules, "jax.distributed", SimpleNamespace(is_initialized=lambda: False)
    )
    assert mean_of(2.0).compute() == {"mean": 2.0}
    allowed = {"jax.distributed", "disteval_backends.non_dist"}
    assert set(sys.modules) - before <= allowed


def test_metrics_of_a_group_that_were_given_different_backends_are_refused() -> None:
    metrics = {"a": Mean(dist_backend="non_dist"), "b": Mean(dist_backend="threads")}
    with pytest.raises(UsageError, match=r"'non_dist'.*'threads"):
        MetricGroup(metrics)
    assert MetricGroup(metrics, "non_dist")


def test_a_metric_of_a_group_keeps_the_backend_that_it_was_given() -> None:
    def rank(backend: ThreadsDist) -> Any:
        return MetricGroup({"mean": mean_of(float(backend.rank), dist_backend=backend)}).compute()

    assert values(run_ranks(3, rank)) == [{"mean": {"mean": 1.0}}] * 3


@pytest.mark.parametrize("wrong", [3, ThreadsDist, ["non_dist"]])
def test_a_backend_that_is_neither_a_name_nor_a_backend_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="backend must be"):
        mean_of(1.0, dist_backend=wrong).compute()


@pytest.mark.parametrize("name", ["threads", "disteval_backends.threads_dist:ThreadsDist"])
def test_the_default_may_be_any_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_default(monkeypatch)
    set_default_dist_backend(name)
    assert isinstance(get_dist_backend(), ThreadsDist)
    mine = ThreadsDist()
    set_default_dist_backend(mine)
    assert Mean().dist_backend is mine
