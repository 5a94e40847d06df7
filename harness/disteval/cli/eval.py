"""``disteval eval``: evaluate a task on many ranks, and count every sample once."""

from __future__ import annotations

import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from disteval.arguments import check_output_file, check_output_folder
from disteval.cli.eval_resnet18 import FRAMEWORKS, ResNet18
from disteval.cli.eval_world import EvalLeader
from disteval.cli.job import NO_BACKEND, Elastic, EvalJob
from disteval.cli.named_task import NamedTask
from disteval.cli.options import (
    CERTIFICATE,
    COUNT,
    DATA,
    DOWNLOAD,
    HTML,
    INTERFACE,
    JSON,
    LAUNCHER,
    RANKS,
    RESNET18,
    RESULTS,
    TRACE,
    Command,
    OutputPath,
    counts,
    data_folder,
    is_given,
    option,
    timeout_option,
)
from disteval.cli.terminal import is_quiet, write_reports
from disteval.data.contents import DIGESTS
from disteval.data.predictions import FormatName, Predictions, load_predictions
from disteval.data.predictions.formats import FORMATS
from disteval.errors import UsageError
from disteval.judging.report import header
from disteval.launched import LaunchedJob
from disteval.models.resnet18 import NUM_CLASSES
from disteval.records.certificate import as_text, certify_evaluation
from disteval.registry import add_working_directory, get_backend_class
from disteval.traces.folder import as_folder
from disteval.world import (
    Launcher,
    RayLauncher,
    World,
    check_world_size,
    detect_outer_world,
    follow,
    share_cores,
)
from disteval.world.attached import OuterLauncher, has_named_leader
from disteval.world.launchers import get_launcher, prepare_ranks

DEFAULT_WORLD_SIZE = 3

TORCH = ("torch", "torch.distributed")
"""The modules that ranks of ``torch_cpu`` are forked off, as in ``preload`` of its class."""

_ONE_FILE: dict[str, FormatName] = {".jsonl": "jsonl", ".parquet": "parquet"}
"""The formats of predictions in one file, by the suffix of its name."""


def _check_predictions(option: str, path: Path) -> None:
    """Raise UsageError if predictions can't be written to this folder or file."""
    if path.suffix in _ONE_FILE and not path.is_dir():
        check_output_file(option, path)
        check_output_folder(option, path.with_name(f"{path.name}.parts"))
    else:
        check_output_folder(option, path)


def _checked_digest(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not re.fullmatch("[0-9a-f]{16}", value):
        raise UsageError(
            f"--expect-digest: {value!r:.100} is not 16 digits from 0 to f, as evaluations print "
            f"under digest"
        )
    return value


@click.command("eval", cls=Command)
@click.argument("task", required=False, metavar="[MODULE:TASK]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- WORDS]")
@option(
    "--batch-size", type=COUNT, metavar="N", show_default="256, or the task's",
    help="Samples in a batch, on each rank.",
)  # fmt: skip
@option(
    "--limit", type=COUNT, metavar="N", show_default="all",
    help="Samples to evaluate, from the first on.",
)  # fmt: skip
@option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu",
    help="The device that computes the model.",
)  # fmt: skip
@option(
    "--expect-digest", callback=_checked_digest, metavar="DIGEST",
    help="Refuse samples that have another digest.",
)  # fmt: skip
@option(
    "--backend", default="torch_cpu", metavar="NAME",
    help="The backend that carries the results.", heading=RANKS,
)  # fmt: skip
@option(
    "--world-size", type=COUNT, metavar="N", help="The number of ranks.", heading=RANKS,
    show_default=f"{DEFAULT_WORLD_SIZE}, or as mpirun started",
)  # fmt: skip
@LAUNCHER
@INTERFACE
@option("--threads", type=COUNT, metavar="N", help="Computing threads of each rank.", heading=RANKS)
@timeout_option(60.0, "Seconds without progress until ranks are lost.")
@option(
    "--elastic", is_flag=True, heading=RANKS,
    help="Lend batches to ranks, and go on when some are lost.",
)  # fmt: skip
@option(
    "--ledger", type=OutputPath(check_output_folder), metavar="DIR", heading=RANKS,
    help="Keep what ranks have finished; the next run goes on there.",
)  # fmt: skip
@option(
    "--join", is_flag=True, heading=RANKS,
    help="Help the run with this --ledger or DISTEVAL_LEADER.",
)  # fmt: skip
@option(
    "--ranks-per-lease", type=COUNT, default=1, metavar="N", heading=RANKS,
    help="Consecutive ranks that evaluate a lease together.",
)  # fmt: skip
@option(
    "--predictions", type=OutputPath(_check_predictions), metavar="DIR|FILE", heading=RESULTS,
    help="Write predictions to a folder, or a file .jsonl or .parquet.",
)  # fmt: skip
@option(
    "--predictions-format", type=click.Choice(list(FORMATS)), default="jsonl", metavar="FORMAT",
    help=f"One of {', '.join(FORMATS)}.", heading=RESULTS,
)  # fmt: skip
@option("--overwrite", is_flag=True, help="Replace predictions that are there.", heading=RESULTS)
@DATA
@DOWNLOAD
@option(
    "--framework", type=click.Choice(list(FRAMEWORKS)), default="torch", metavar="NAME",
    help=f"One of {', '.join(FRAMEWORKS)}.", heading=RESNET18,
)  # fmt: skip
@option(
    "--weights", type=click.Path(path_type=Path), metavar="FILE", heading=RESNET18,
    show_default="those that ship", help="A .safetensors or .pt file.",
)  # fmt: skip
@option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32", heading=RESNET18,
    help="The number format.",
)  # fmt: skip
@option(
    "--exact", is_flag=True, help="Compute batch normalisations instead of folding them.",
    heading=RESNET18,
)  # fmt: skip
@option(
    "--topk", callback=counts(NUM_CLASSES), default="1,3", metavar="K,K,…", heading=RESNET18,
    help="Each k of the top-k accuracies.",
)  # fmt: skip
@JSON
@HTML
@CERTIFICATE
@TRACE
@option("--progress/--no-progress", default=True, help="Show a progress bar.", heading=RESULTS)
def eval_command(
    task: str | None, arguments: tuple[str, ...], backend: str, world_size: int | None,
    launcher: str | None, interface: str | None, device: str, batch_size: int | None,
    limit: int | None, predictions: Path | None, predictions_format: FormatName, overwrite: bool,
    data: str, download: bool, elastic: bool, ledger: Path | None, join: bool, ranks_per_lease: int,
    expect_digest: str | None, json_path: Path | None, html_path: Path | None,
    certificate: Path | None, timeout: float, threads: int | None, trace: Path | None,
    progress: bool, **resnet18: Any,
) -> None:  # fmt: skip
    r"""Evaluate a task on several ranks, and count every sample once.

    MODULE:TASK is a function that returns a disteval.Task, as task() in my_task.py; every rank
    calls it, with WORDS as its arguments. Without it, ResNet-18 is evaluated on CIFAR-10. Ranks are
    started, or joined under mpirun. The exit status is 0, 1 after a failure, 2 after wrong usage.

    \b
    disteval eval my_task:task --world-size 3 --json report.json --html report.html
    mpirun -np 3 disteval eval my_task:task --backend mpi4py
    """
    if threading.current_thread() is threading.main_thread():  # as Ctrl-C does it
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    if predictions is None:
        without = "has no effect without --predictions DIR; add it, or leave this out"
        _refuse(("predictions_format", "overwrite"), without)
    may_lose = elastic or join or ledger is not None
    if not may_lose:
        without = "has no effect without --elastic; add it, or leave this out"
        _refuse(("ranks_per_lease",), without)
    source: NamedTask | ResNet18
    if task is not None:
        _refuse(
            ("data", "download", *resnet18),
            f"is an option of ResNet-18, and the task is {task}; leave the option out, or do what "
            f"it says in the task",
        )
        add_working_directory()
        source = NamedTask(task, device if is_given("device") else None, arguments)
    target = None
    if predictions is not None:
        target = _target(predictions.absolute(), predictions_format, overwrite)
    if may_lose:
        _check_elastic(ledger, join)
        backend = NO_BACKEND
    outer = detect_outer_world()
    if outer is not None:
        share_cores(outer, threads)
        _check_outer(outer, world_size, launcher, download)
    if task is None:
        source = ResNet18(data=data_folder(data, download), device=device, **resnet18)
    # Other hosts may have other files, and the ranks of somebody's launcher read them at once.
    if outer is None and (launcher is None or get_launcher(launcher).on_this_host):
        source.check()
        if backend == "torch_cpu" and launcher in (None, "local"):
            # Its class, which says so, takes as long to import as the ranks take to start.
            prepare_ranks(TORCH, world_size or DEFAULT_WORLD_SIZE, threads)
    from disteval.cli.tables import print_evaluation  # while the ranks start

    cls = None if may_lose else get_backend_class(backend)
    if outer is not None:
        size = outer.world_size
    elif world_size is not None:
        size = world_size
    elif join:
        size = ranks_per_lease
    elif cls is not None and not cls.capabilities.multi_rank:
        size = 1
    else:
        size = DEFAULT_WORLD_SIZE
    if cls is not None:
        check_world_size(cls, size)
    elif size % ranks_per_lease:
        raise UsageError(
            f"{size} ranks are not whole groups of --ranks-per-lease {ranks_per_lease}; use a "
            f"multiple of it as --world-size"
        )
    if outer is not None and outer.rank > 0:
        sys.exit(follow(outer, elastic=may_lose))
    elasticity = Elastic(ledger, join, ranks_per_lease) if may_lose else None
    job = EvalJob(source, backend, batch_size, limit, target, elasticity)
    folder = as_folder(trace, "--trace")

    def new_world(size: int) -> World:
        how: str | Launcher | None = launcher or ("local" if may_lose else None)
        if outer is not None:
            how = OuterLauncher(outer, interface)
        elif launcher == "ray" and device == "cuda":  # Ray shows a rank those that it has reserved
            how = RayLauncher(gpus_per_worker=1)
        return World(
            None if may_lose else backend, size, launcher=how, timeout=timeout,
            on_lost="continue" if may_lose else "fail", threads=threads, trace=folder,
        )  # fmt: skip

    report = EvalLeader(job, new_world, size, progress and not is_quiet()).evaluate()
    if expect_digest is not None and report["digest"] != expect_digest:
        why = f"not known (their contents can't be compared, or {DIGESTS}=off)"
        found = report["digest"] or why
        written = f"; the predictions of these samples are in {target.path}" if target else ""
        raise UsageError(
            f"--expect-digest: the digest of the samples is {found}, and {expect_digest} was "
            f"expected{written}; evaluate the data set that was expected, or leave the option out"
        )
    if predictions is not None and target is not None and not join:  # a leader does it
        asked = predictions.absolute()
        if target.path != asked:  # one file was asked for
            load_predictions(target.path).write(asked)
            shutil.rmtree(target.path)
        report["predictions"] = str(asked)
    status = write_reports(header("eval") | report, report["task"], json_path, html_path)
    print_evaluation(report)
    if certificate is not None:
        from disteval.report.files import write_file  # not needed without a certificate

        write_file("--certificate", certificate, as_text(certify_evaluation(report)))
    sys.exit(status)


def _target(path: Path, format_name: FormatName, overwrite: bool) -> Predictions:
    """Return where ranks write predictions; the path is absolute, as ranks may run elsewhere."""
    one = _ONE_FILE.get(path.suffix)
    if one is None or path.is_dir():
        return Predictions(path, format_name, overwrite=overwrite)
    if is_given("predictions_format") and format_name != one:
        raise UsageError(
            f"--predictions-format {format_name}, but --predictions {path.name} is a file of "
            f"{one}; leave the option out, or give a folder"
        )
    if path.exists() and not overwrite:
        raise UsageError(f"--predictions {path} is there already; add --overwrite to replace it")
    return Predictions(path.with_name(f"{path.name}.parts"), one, overwrite=overwrite)


def _refuse(names: Iterable[str], why: str) -> None:
    """Refuse options that stand on the command line."""
    for name in names:
        if is_given(name):
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _check_elastic(ledger: Path | None, join: bool) -> None:
    """Refuse options of ranks that may be lost if they contradict each other."""
    if is_given("backend"):
        raise UsageError(
            "--backend with --elastic: leases need no backend; leave it out, and say with "
            "--launcher how the ranks are started"
        )
    if join and ledger is None and not has_named_leader():
        raise UsageError(
            "--join needs the evaluation to help: add its --ledger DIR, or set DISTEVAL_LEADER and "
            "DISTEVAL_KEY_FILE as there"
        )


def _check_outer(
    outer: LaunchedJob, world_size: int | None, launcher: str | None, download: bool
) -> None:
    """Refuse options that contradict the ranks that a launcher has started."""
    if download:
        raise UsageError(f"--download: fetch the data once, before {outer.launcher} starts ranks")
    if world_size not in (None, outer.world_size):
        raise UsageError(
            f"--world-size {world_size}, but {outer.launcher} started {outer.world_size} ranks; "
            f"leave the option out"
        )
    if launcher is not None:
        raise UsageError(
            f"--launcher {launcher}, but {outer.launcher} has started the ranks; "
            f"leave the option out"
        )
