"""``disteval eval``: evaluate ResNet-18 over CIFAR-10 on many ranks, exactly."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from disteval.cli.completion import complete_backend
from disteval.cli.job import FRAMEWORKS, EvalJob, run_job
from disteval.cli.options import (
    batch_size_option,
    check_room,
    counts,
    data_folder,
    data_options,
    device_option,
    force_option,
    json_option,
    timeout_option,
)
from disteval.cli.terminal import is_quiet
from disteval.errors import UsageError
from disteval.models.resnet18 import NUM_CLASSES
from disteval.registry import get_backend_class
from disteval.report.files import SCHEMA_VERSION, write_run
from disteval.worlds import (
    OuterWorld,
    RayLauncher,
    World,
    check_world_size,
    detect_outer_world,
    follow,
    share_cores,
)

DEFAULT_WORLD_SIZE = 3


@click.command("eval")
@click.option(
    "--framework", type=click.Choice(list(FRAMEWORKS)), default="torch",
    help="The framework that computes the network.",
)  # fmt: skip
@click.option(
    "--backend", default="torch_cpu", shell_complete=complete_backend,
    help="The backend that carries the results.",
)  # fmt: skip
@click.option(
    "--world-size", type=int, help="The number of ranks.",
    show_default=f"{DEFAULT_WORLD_SIZE}, or as mpirun or torchrun started",
)  # fmt: skip
@click.option(
    "--launcher", metavar="NAME", show_default="the backend's",
    help="The launcher of the ranks, such as ray.",
)  # fmt: skip
@force_option
@device_option("The device that computes the network.")
@batch_size_option(256, "The number of pictures in a batch, on each rank.")
@data_options
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help="The network's weights, in a .safetensors or .pt file.",
    show_default="weights that are part of the package",
)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), default="float32",
    help="The number format of the network.",
)  # fmt: skip
@click.option("--exact", is_flag=True, help="Compute batch normalisations instead of folding them.")
@click.option(
    "--topk", callback=counts(NUM_CLASSES), default="1,3", metavar="K,K,…",
    help="Each k of the top-k accuracies, with commas between them.",
)  # fmt: skip
@json_option
@timeout_option(
    60.0,
    "Seconds without progress before the ranks are terminated; they get at least 60 to start.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="The number of computing threads of each rank."
)
@click.option("--progress/--no-progress", default=True, help="Show a progress bar.")
def eval_command(
    world_size: int | None,
    launcher: str | None,
    data: str,
    download: bool,
    json_path: Path | None,
    timeout: float,
    threads: int | None,
    progress: bool,
    **settings: Any,
) -> None:
    r"""Evaluate ResNet-18 on CIFAR-10, and count every sample once.

    The command starts the ranks, or joins them under mpirun or torchrun. It evaluates CIFAR-10's
    test split. The exit status is 0, or 1 if the evaluation failed, or 2 after wrong usage.

    \b
    disteval eval --world-size 3
    disteval eval --backend mpi4py --data ~/data --json report.json
    mpirun -np 3 disteval eval --backend mpi4py
    disteval eval --launcher ray
    """
    outer = detect_outer_world()
    if outer is not None:
        share_cores(outer, threads)
        _check_outer(outer, world_size, launcher, download)
    size = _world_size(settings["backend"], world_size, launcher, outer)
    job = EvalJob(data=data_folder(data, download), **settings)
    if outer is not None and outer.rank > 0:
        sys.exit(follow(outer))
    if outer is not None:
        world = World.lead(outer, timeout)
    else:
        # Ray shows a rank the GPUs that it has reserved, and no others.
        gpus = launcher == "ray" and job.device == "cuda"
        starter = RayLauncher(gpus_per_worker=1) if gpus else launcher
        world = World(job.backend, size, launcher=starter, timeout=timeout, threads=threads)
    with world:
        if outer is not None:
            world.join(job.backend)
        report = _evaluate(world, job, size, progress and not is_quiet())
        if outer is not None:
            world.leave()
    try:
        write_run(json_path, {"schema_version": SCHEMA_VERSION, "kind": "eval"} | report)
    finally:
        _show(report)


def _check_outer(
    outer: OuterWorld, world_size: int | None, launcher: str | None, download: bool
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


def _world_size(
    backend: str, asked: int | None, launcher: str | None, outer: OuterWorld | None
) -> int:
    cls = get_backend_class(backend)
    if outer is not None:
        size = outer.world_size
    elif asked is not None:
        size = asked
    else:
        size = DEFAULT_WORLD_SIZE if cls.capabilities.multi_rank else 1
    check_world_size(cls, size)
    if outer is None:
        check_room(launcher or cls.launcher, size)
    return size


def _evaluate(world: World, job: EvalJob, size: int, progress: bool) -> dict[str, Any]:
    """Run the job on every rank, and return the report of rank 0."""
    done: dict[int, int] = {}
    totals: dict[int, int | None] = {}
    # A bar is for terminals (disable=None), not for log files.
    with tqdm(unit="img", disable=None if progress else True) as bar:

        def show(rank: int, rank_done: int, rank_total: int | None) -> None:
            done[rank], totals[rank] = rank_done, rank_total
            known = [total for total in totals.values() if total is not None]
            bar.total = sum(known) if len(known) == len(totals) else None
            bar.update(sum(done.values()) - bar.n)

        report: dict[str, Any] = world.run(run_job, *[job] * size, on_progress=show)[0]
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
