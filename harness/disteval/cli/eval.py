"""``disteval eval``: evaluate ResNet-18 over CIFAR-10 on many ranks, exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, NoReturn

import click
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from disteval.cli.completion import complete_backend
from disteval.cli.job import FRAMEWORKS, EvalJob, run_job
from disteval.cli.terminal import is_quiet, print_error
from disteval.data.cifar10 import download_cifar10
from disteval.errors import HarnessError, UsageError, WorldError, exit_code_of
from disteval.registry import get_backend_class
from disteval.report.files import SCHEMA_VERSION, check_json_path, write_run
from disteval.worlds import (
    Launcher,
    OuterWorld,
    RayLauncher,
    World,
    check_world_size,
    detect_outer_world,
    exit_now,
    follow,
    share_cores,
)

DEFAULT_WORLD_SIZE = 3


def _parse_topk(_context: object, _option: object, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of integers such as 1,3") from None


@click.command("eval")
@click.option(
    "--framework",
    type=click.Choice(list(FRAMEWORKS)),
    default="torch",
    show_default=True,
    help="The framework that computes the network.",
)
@click.option(
    "--backend",
    default="torch_cpu",
    show_default=True,
    shell_complete=complete_backend,
    help="The backend that carries the results.",
)
@click.option(
    "--world-size",
    type=int,
    help=f"The number of ranks.  [default: {DEFAULT_WORLD_SIZE}, or as mpirun or torchrun started]",
)
@click.option(
    "--launcher",
    metavar="NAME",
    help="The launcher of the ranks, such as ray.  [default: the backend's]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="The device that computes the network.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Pictures in a batch, on each rank.",
)
@click.option(
    "--data",
    envvar="CIFAR10_ROOT",
    default="embedded",
    help="A folder with CIFAR-10, or 'embedded'.  [default: $CIFAR10_ROOT, else embedded]",
)
@click.option("--download", is_flag=True, help="Download CIFAR-10 into --data first.")
@click.option("--weights", type=click.Path(path_type=Path), help="A .safetensors or .pt file.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16"]),
    default="float32",
    show_default=True,
    help="The number format of the network.",
)
@click.option("--exact", is_flag=True, help="Compute batch normalisations instead of folding them.")
@click.option(
    "--topk",
    callback=_parse_topk,
    default="1,3",
    show_default=True,
    metavar="K,K,…",
    help="The k of each top-k accuracy.",
)
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), help="Write the report to this file."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds without progress after which the ranks are terminated; at least 60 to start.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Computing threads of each rank.")
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def eval_command(
    framework: str,
    backend: str,
    world_size: int | None,
    launcher: str | None,
    device: str,
    batch_size: int,
    data: str,
    download: bool,
    weights: Path | None,
    dtype: Literal["float32", "bfloat16"],
    exact: bool,
    topk: tuple[int, ...],
    json_path: Path | None,
    timeout: float,
    threads: int | None,
    progress: bool,
) -> None:
    r"""Evaluate ResNet-18 over CIFAR-10's test split, every sample counted exactly once.

    Starts the ranks itself, or joins them under mpirun or torchrun. Exits with 0, with 1 when the
    evaluation failed, or with 2 for wrong usage.

    \b
    disteval eval --world-size 3
    disteval eval --backend mpi4py --data ~/data --json report.json
    mpirun -np 3 disteval eval --backend mpi4py
    disteval eval --launcher ray
    """
    outer = detect_outer_world()
    if outer is not None:
        share_cores(outer, threads)
    try:
        size = _world_size(backend, world_size, outer)
        folder = _data_folder(data, download, outer)
        job = EvalJob(framework, backend, device, batch_size, folder, weights, topk, exact, dtype)
        job.check()
        check_json_path(json_path)
        if outer is not None and outer.rank > 0:
            sys.exit(follow(outer))
        starter = _launcher(launcher, device, outer)
        report = _evaluate(job, size, starter, timeout, threads, progress, outer)
    except HarnessError as error:
        _fail(error, outer)
    _show(report)
    write_run(json_path, {"schema_version": SCHEMA_VERSION, "kind": "eval"} | report)


def _data_folder(data: str, download: bool, outer: OuterWorld | None) -> Path | None:
    if download and outer is not None:
        raise UsageError(f"--download: fetch the data once, before {outer.launcher} starts ranks")
    if data != "embedded":
        return download_cifar10(data) if download else Path(data)
    if download:
        raise UsageError("--download needs a folder to put CIFAR-10 in: add --data DIR")
    return None


def _world_size(backend: str, asked: int | None, outer: OuterWorld | None) -> int:
    cls = get_backend_class(backend)
    if outer is not None:
        if asked not in (None, outer.world_size):
            raise UsageError(
                f"--world-size {asked}, but {outer.launcher} started {outer.world_size} ranks; "
                f"leave the option out"
            )
        asked = outer.world_size
    elif asked is None:
        asked = DEFAULT_WORLD_SIZE if cls.capabilities.multi_rank else 1
    check_world_size(cls, asked)
    return asked


def _launcher(name: str | None, device: str, outer: OuterWorld | None) -> str | Launcher | None:
    if name is not None and outer is not None:
        raise UsageError(
            f"--launcher {name}, but {outer.launcher} has started the ranks; leave the option out"
        )
    # Ray shows a rank the GPUs that it has reserved, and no others.
    return RayLauncher(gpus_per_worker=1) if name == "ray" and device == "cuda" else name


def _evaluate(
    job: EvalJob,
    world_size: int,
    launcher: str | Launcher | None,
    timeout: float,
    threads: int | None,
    progress: bool,
    outer: OuterWorld | None,
) -> dict[str, Any]:
    """Run the job in a world; the report of rank 0."""
    with (
        World(job.backend, world_size, launcher=launcher, timeout=timeout, threads=threads)
        if outer is None
        else World.lead(outer, timeout) as world,
        # On a terminal alone (disable=None): a log file is no place for a bar.
        tqdm(unit="img", disable=None if progress and not is_quiet() else True) as bar,
    ):
        done: dict[int, int] = {}
        totals: dict[int, int] = {}

        def show(rank: int, rank_done: int, rank_total: int) -> None:
            done[rank], totals[rank] = rank_done, rank_total
            bar.total = sum(totals.values())
            bar.update(sum(done.values()) - bar.n)

        if outer is not None:
            world.join(job.backend)
        reports = world.run(run_job, *[job] * world_size, on_progress=show)
        if outer is not None:
            world.leave()
    report: dict[str, Any] = reports[0]
    return report


def _show(report: dict[str, Any]) -> None:
    table = Table(title=f"ResNet-18 on {report['dataset']}", show_header=False)
    for name, value in report["accuracy"].items():
        correct = report["correct"][name]
        table.add_row(f"{name} accuracy", f"{value:.4f}  ({correct} of {report['evaluated']})")
    table.add_row("samples", f"{report['evaluated']} of {report['size']}")
    table.add_row("coverage", f"{report['coverage']}, each once")
    table.add_row("duplicates dropped", str(report["padded"]))
    table.add_row("images/s", f"{report['images_per_second']:.0f}")
    table.add_row("ranks", str(report["world_size"]))
    table.add_row("backend", report["backend"])
    table.add_row("device", f"{report['device']} ({report['framework']})")
    Console().print(table)


def _fail(error: HarnessError, outer: OuterWorld | None) -> NoReturn:
    """End with one paragraph, or with a world's whole report where ranks did different things."""
    code = exit_code_of(error)
    if outer is None or outer.rank == 0 or code == 1:
        shown = error.common if isinstance(error, WorldError) and error.common else error
        print_error("eval", str(shown), error)
    if outer is not None and isinstance(error, WorldError) and not error.in_step:
        exit_now(code)
    sys.exit(code)
