"""``disteval fit``: train ResNet-18 on CIFAR-10 on several ranks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from disteval.arguments import check_output_folder
from disteval.cli.options import (
    COUNT,
    DATA,
    DOWNLOAD,
    JSON,
    POSITIVE,
    RANKS,
    RESULTS,
    TRACE,
    Command,
    OutputPath,
    data_folder,
    is_given,
    option,
    timeout_option,
)
from disteval.cli.terminal import is_quiet, write_reports
from disteval.data.cifar10 import load_cifar10
from disteval.errors import UsageError
from disteval.extras import needs
from disteval.files import lock_folder
from disteval.judging.report import header
from disteval.traces.folder import as_folder
from disteval.world import detect_outer_world

if TYPE_CHECKING:
    from disteval.estimator.checkpoint import Checkpoints


@click.command("fit", cls=Command)
@option(
    "--epochs", type=COUNT, default=4, metavar="N",
    help="The epoch at which training ends, counted from the first training.",
)  # fmt: skip
@option(
    "--batch-size", type=COUNT, default=64, metavar="N",
    help="Pictures in a training batch, on each rank.",
)  # fmt: skip
@option("--lr", type=POSITIVE, default=0.1, metavar="RATE", help="The highest learning rate.")
@option("--seed", type=int, default=0, metavar="N", help="The seed of everything that is random.")
@option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu",
    help="With cuda, each rank gets a GPU of its own.",
)  # fmt: skip
@DATA
@DOWNLOAD
@option(
    "--world-size", type=COUNT, default=2, metavar="N", heading=RANKS,
    help="The number of ranks that share the training.",
)  # fmt: skip
@option(
    "--launcher", type=click.Choice(["local", "ray"]), default="local", heading=RANKS,
    help="Processes of this machine, or a Ray cluster.",
)  # fmt: skip
@option(
    "--address", metavar="HOST:PORT", heading=RANKS,
    help="The Ray cluster, or 'auto'; without it, Ray is started here.",
)  # fmt: skip
@option(
    "--max-failures", type=click.IntRange(min=0), default=0, metavar="N", heading=RANKS,
    help="The number of times that lost ranks are replaced.",
)  # fmt: skip
@timeout_option(120.0, "Seconds without a finished batch after which ranks have failed.")
@option(
    "--work-dir", type=OutputPath(check_output_folder), default=Path("disteval-fit"),
    metavar="DIR", help="For checkpoints and the best weights.", heading=RESULTS,
)  # fmt: skip
@option(
    "--resume", is_flag=False, flag_value="yes", type=click.Choice(["yes", "auto"]),
    help="Go on from the last checkpoint; with auto, start anew if there is none.",
    heading=RESULTS,
)  # fmt: skip
@JSON
@TRACE
def fit_command(
    data: str, download: bool, work_dir: Path, resume: str | None, epochs: int, batch_size: int,
    lr: float, seed: int, trace: Path | None, json_path: Path | None, **ranks: Any,
) -> None:  # fmt: skip
    r"""Train ResNet-18 on CIFAR-10, and validate after each epoch.

    The command trains on the training split and validates on the test split. It prints a line for
    each of them in each epoch, and writes the weights of the best epoch to best.safetensors in the
    work folder. With these weights, disteval eval counts as many right predictions as this command
    has printed.

    \b
    disteval fit --data ~/cifar --work-dir run
    disteval eval --data ~/cifar --weights run/best.safetensors
    disteval fit --data ~/cifar --work-dir run --epochs 8 --resume
    disteval fit --launcher ray --address auto --world-size 8
    """
    outer = detect_outer_world()
    if outer is not None:
        raise UsageError(
            f"{outer}, and disteval fit starts its own ranks; run it once, without "
            f"{outer.launcher}, with --world-size {outer.world_size}"
        )
    folder = data_folder(data, download)
    if folder is not None:
        load_cifar10(folder, "train")
        load_cifar10(folder, "test")
    with needs("disteval fit", "torch"):
        from disteval.cli import fit_resnet18 as resnet18
        from disteval.estimator import Estimator, checkpoint
    work_dir = work_dir.resolve()
    last = _last_checkpoint(checkpoint.Checkpoints(work_dir), work_dir, resume)
    if last is not None:
        begun = _begun_with(checkpoint.read_checkpoint(last), last, {"lr": lr, "seed": seed})
        lr, seed = begun["lr"], begun["seed"]
        resnet18.read_best(work_dir)  # a damaged file is refused now, and not after the training
    work_dir.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    settings = {"epochs": epochs, "batch_size": batch_size, "lr": lr}
    with Estimator(
        resnet18.create_runner,
        {"data": folder and str(folder.resolve()), "work_dir": str(work_dir), **settings},
        seed=seed, progress=not is_quiet(), trace=as_folder(trace, "--trace"), **ranks,
    ) as training:  # fmt: skip
        if last is not None:
            training.load(last)
            click.echo(f"continuing from {last}")
        loaders = [resnet18.train_loader, resnet18.val_loader]
        records = training.fit(loaders, [("train", 1), ("val", 1)], epochs)
    best = resnet18.read_best(work_dir)
    report = {
        **header("fit"),
        **{name: ranks[name] for name in ("launcher", "world_size", "device")},
        **settings,
        "seed": seed,
        "data": data,
        "resumed": None if last is None else str(last),
        "best": best,
        "records": records,
        "seconds": time.perf_counter() - begin,
    }
    status = write_reports(report, "", json_path)
    if not any(record["mode"] == "train" for record in records):
        click.echo(f"{epochs} epochs are trained already; give more --epochs to continue")
    if best is not None:
        click.echo(
            f"best: epoch {best['epoch']}, accuracy {best['correct'] / best['evaluated']:.4f} "
            f"({best['correct']} of {best['evaluated']}), in {work_dir / checkpoint.BEST_WEIGHTS}"
        )
    sys.exit(status)


def _last_checkpoint(found: Checkpoints, work_dir: Path, resume: str | None) -> Path | None:
    """Return the checkpoint to continue from; None begins anew."""
    last: Path | None = None
    if work_dir.is_dir():
        lock = lock_folder(work_dir)  # until the ranks take it
        try:
            if resume is None and found.entries():
                raise UsageError(
                    f"--work-dir {work_dir} has checkpoints of an earlier training; continue from "
                    f"them with --resume, or give another folder"
                )
            last = found.newest(lambda line: click.echo(f"warning: {line}", err=True))
        finally:
            if lock is not None:
                lock.release()
    if last is None and resume == "yes":
        raise UsageError(
            f"--work-dir {work_dir} has no checkpoint to continue from; correct the folder, or "
            f"begin a training with --resume=auto"
        )
    if last is None and resume == "auto":
        click.echo(f"there is no checkpoint in {work_dir} yet: a new training begins")
    return last


def _begun_with(state: Any, last: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a checkpoint keeps; UsageError where others were asked for."""
    groups = state.get("optimizer", {}).get("param_groups", [])
    kept = {
        "lr": groups[0].get("initial_lr") if groups else None,
        "seed": state.get("meta", {}).get("seed"),
    }
    begun = {name: asked[name] if kept[name] is None else kept[name] for name in asked}
    for name, value in begun.items():
        if value != asked[name] and is_given(name):
            raise UsageError(
                f"--{name} {asked[name]}, but the training in {last} was begun with {value}, which "
                f"it keeps; leave the option out, or give another --work-dir"
            )
    return begun
