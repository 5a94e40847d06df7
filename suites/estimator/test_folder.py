"""A training resumes from its newest whole checkpoint, and has its folder for itself."""

import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval import UsageError, WeightsError
from hypothesis import given, settings
from hypothesis import strategies as st

from suites.helpers.namespaces import run_alone
from suites.helpers.needs import framework, needs
from suites.helpers.processes import start_as_from_a_terminal

torch = framework("torch")

from disteval.estimator import EpochBasedRunner, latest_checkpoint, read_checkpoint  # noqa: E402
from disteval.estimator.hooks import BestWeightsHook, CheckpointHook, Hook, TextLoggerHook  # noqa: E402

from suites.estimator.tiny import Tiny, assert_same, samples  # noqa: E402

pytestmark = needs("torch")

EPOCHS = 4


def make(folder: Path, **options: Any) -> Any:
    model = Tiny(dropout=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    runner = EpochBasedRunner(model, optimizer=optimizer, work_dir=folder, max_epochs=EPOCHS)
    runner.register_training_hooks(
        {"policy": "fixed"},
        optimizer_config={},
        checkpoint_config={"interval": 1, **options},
        log_config={"interval": 100},
    )
    return runner


def train(runner: Any, epochs: int = EPOCHS) -> Any:
    loader = torch.utils.data.DataLoader(samples(24), 8, shuffle=True)
    runner.run([loader, loader], [("train", 1), ("val", 1)], max_epochs=epochs)
    return {key: runner.state_dict()[key] for key in ("state_dict", "optimizer", "rng", "iter")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of a training after three of its four epochs, and its state at the end."""
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(5)
    runner = make(folder)
    train(runner, 3)
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    return copy, train(runner)


@pytest.fixture
def folder(whole: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole[0], tmp_path / "work"))


def flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("[!.]*.pt"))


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_no_damage_to_a_file_ever_changes_what_is_trained(whole: Any, data: Any) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(shutil.copytree(whole[0], Path(temporary, "work")))
        path = work / data.draw(st.sampled_from(["epoch_3.pt", "epoch_2.pt", "epoch_1.pt"]))
        size = path.stat().st_size
        at = data.draw(st.integers(0, size - 1))
        kind = data.draw(st.sampled_from(["flipped", "truncated", "zeros", "longer"]))
        if kind == "flipped":
            flip(path, at, data.draw(st.integers(0, 7)))
        elif kind == "truncated":
            os.truncate(path, at)
        elif kind == "zeros":
            whole_bytes = path.read_bytes()
            path.write_bytes(whole_bytes[:at] + b"\1" * (size - at))
        else:
            path.write_bytes(path.read_bytes() + bytes(size - at))
        with pytest.raises(WeightsError, match=r"damaged"):
            make(work).resume(path)
        resumed = make(work)
        resumed.resume(work)
        assert resumed.epoch == (2 if path.name == "epoch_3.pt" else 3)
        assert_same(train(resumed), whole[1])


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_no_damage_to_the_index_ever_changes_what_is_trained(whole: Any, data: Any) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(shutil.copytree(whole[0], Path(temporary, "work")))
        index = work / "checkpoints.json"
        at = data.draw(st.integers(0, index.stat().st_size - 1))
        if data.draw(st.booleans()):
            flip(index, at, data.draw(st.integers(0, 7)))
        else:
            os.truncate(index, at)
        resumed = make(work)
        try:
            resumed.resume(work)
            found = train(resumed)
        except (UsageError, WeightsError):
            return
        assert_same(found, whole[1])


def test_where_nothing_says_which_is_whole_nothing_is_used(folder: Path) -> None:
    copied = Path(shutil.copytree(folder, folder.with_name("copied")))
    (copied / "checkpoints.json").unlink()
    for path in folder.glob("*.pt"):
        os.truncate(path, 2000)
    for work in (folder, copied):
        before = {path.name: path.read_bytes() for path in work.glob("*.pt")}
        with pytest.raises(WeightsError, match=r"epoch_3\.pt"):
            make(work).resume(work)
        with pytest.raises(WeightsError, match=r"epoch_3\.pt"):
            latest_checkpoint(work)
        assert {path.name: path.read_bytes() for path in work.glob("*.pt")} == before
    # A file that was copied alone is compared with the checksums of its own archive.
    (alone := folder.with_name("alone")).mkdir()
    shutil.copy(copied / "epoch_3.pt", alone)
    runner = make(alone)
    runner.resume(alone / "epoch_3.pt")
    assert runner.epoch == 3
    flip(alone / "epoch_3.pt", 700)
    with pytest.raises(WeightsError, match=r"epoch_3\.pt"):
        make(alone).resume(alone / "epoch_3.pt")


def test_a_first_checkpoint_that_was_not_entered_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("disteval.estimator.checkpoint.file_digest", interrupt)
        train(make(tmp_path), 1)
    assert (names(tmp_path), latest_checkpoint(tmp_path)) == (["epoch_1.pt"], None)
    train(make(tmp_path), 1)
    assert latest_checkpoint(tmp_path) == tmp_path / "epoch_1.pt"


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save(Tiny().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UsageError, match="no checkpoint"):
        make(tmp_path).resume(tmp_path)
    assert latest_checkpoint(tmp_path) is None
    assert latest_checkpoint(tmp_path / "missing") is None


def test_the_newest_has_the_highest_epoch_and_iteration_whatever_its_date(folder: Path) -> None:
    for at, name in enumerate(("epoch_3.pt", "epoch_1.pt", "epoch_2.pt")):
        os.utime(folder / name, ns=(at, at))
    assert latest_checkpoint(folder) == folder / "epoch_3.pt"
    (folder / "epoch_3.pt").unlink()
    assert latest_checkpoint(folder) == folder / "epoch_2.pt"
    # Files that were exchanged are told apart by what they hold.
    (folder / "epoch_1.pt").rename(folder / "epoch_2.pt")
    with pytest.raises(WeightsError, match=r"epoch_2\.pt"):
        latest_checkpoint(folder)


def test_checkpoints_of_two_trainings_are_not_mixed(folder: Path) -> None:
    make(folder).save_checkpoint(folder, "other_0.pt")
    with pytest.raises(UsageError) as caught:
        latest_checkpoint(folder)
    for name in ("epoch_3.pt", "other_0.pt"):
        assert name in str(caught.value)


def test_a_training_keeps_its_own_last_checkpoints_and_no_others_are_deleted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make(folder).save_checkpoint(folder, "epoch_90.pt")
    runner = make(folder, max_keep_ckpts=1)
    runner.resume(folder / "epoch_1.pt")
    train(runner, 2)
    # Its third epoch was left behind by the resume.
    assert names(folder) == ["epoch_2.pt", "epoch_3.pt", "epoch_90.pt"]
    assert "epoch_3.pt" in caplog.text
    train(runner)
    assert names(folder) == ["epoch_4.pt", "epoch_90.pt"]


def logged(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [(record["mode"], record["epoch"]) for record in map(json.loads, lines)]


def test_the_log_has_each_record_once_after_a_resume(folder: Path) -> None:
    first = [(mode, epoch) for epoch in (1, 2, 3) for mode in ("train", "val")]
    assert logged(folder) == first
    with (folder / "log.jsonl").open("a") as log:
        log.write('{"epoch": 4, "mode": "tr')  # the process was killed while it wrote
    runner = make(folder)
    runner.resume(folder / "epoch_2.pt")
    train(runner)
    assert logged(folder) == [*first, ("train", 4), ("val", 4)]
    # Lines that a checkpoint does not know of stay, since it was written without the hook.
    silent = make(folder, interval=2)
    silent.hooks = [hook for hook in silent.hooks if not isinstance(hook, TextLoggerHook)]
    silent.resume(folder / "epoch_3.pt")
    train(silent)
    runner = make(folder)
    runner.resume(folder / "epoch_4.pt")
    train(runner, 4)
    so_far = logged(folder)
    assert so_far[:8] == [*first, ("train", 4), ("val", 4)]
    # Another training's records stay, and so do those of this one after a second run.
    train(make(folder), 1)
    train(runner, 5)
    assert logged(folder)[len(so_far) :] == [("train", 1), ("val", 1), ("train", 5), ("val", 5)]


class Waits(Hook):
    """Says that a training has begun, and never lets it go on."""

    def after_train_iter(self, runner: Any) -> None:
        print("ready", flush=True)
        signal.pause()


HOLDS = """
import sys
from pathlib import Path
from suites.estimator.test_folder import Waits, make, train
runner = make(Path(sys.argv[1]))
runner.register_hook(Waits())
train(runner)
"""


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that trains in the folder."""
    process = start_as_from_a_terminal([sys.executable, "-c", HOLDS, str(folder)])
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_training_in_a_folder_is_refused_until_the_first_has_died(
    folder: Path, whole: Any, other: subprocess.Popen[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    runner = make(folder)
    runner.resume(folder)
    for _ in range(2):
        with pytest.raises(UsageError, match=rf"{folder} .*process {other.pid}\b"):
            train(runner)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    other.send_signal(signal.SIGKILL)
    other.wait(30)
    assert_same(train(runner), whole[1])


def test_a_folder_is_free_after_each_run_also_after_one_that_failed(folder: Path) -> None:
    runner = make(folder)
    with pytest.raises(UsageError, match="workflow"):
        runner.run([], [("train", 1)])
    runner.resume(folder)
    runner.register_hook(Failing())
    with pytest.raises(LookupError):
        train(runner)
    train(make(folder), 1)


class Failing(CheckpointHook):
    def after_train_iter(self, runner: Any) -> None:
        with pytest.raises(UsageError, match=rf"process {os.getpid()} on"):
            train(make(runner.work_dir))
        raise LookupError


FULL = """
import os, subprocess, sys
from pathlib import Path
from disteval import RankError
from disteval.estimator import latest_checkpoint
from suites.estimator.test_folder import make
small = ["-o", "size=256k,mode=0700", "none"]
subprocess.run(["mount", "-t", "tmpfs", *small, sys.argv[1]], check=True)
work = Path(sys.argv[1], "work")
runner = make(work)
runner.save_checkpoint(work, "first_0.pt")
disk = os.statvfs(work)
(work / "ballast").write_bytes(bytes(disk.f_bavail * disk.f_frsize - 8192))
try:
    runner.save_checkpoint(work)
except RankError as error:
    print(error)
print(latest_checkpoint(work).name)
print(*sorted(path.name for path in work.iterdir()))
"""


def test_a_full_disk_leaves_the_older_checkpoint_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    printed = run_alone(FULL, str(tmp_path / "disk"), folder=tmp_path)
    message, newest, files = printed.splitlines()
    for found in ("epoch_0.pt", os.strerror(errno.ENOSPC)):
        assert found in message
    assert newest == "first_0.pt"
    assert files.split() == ["ballast", "checkpoints.json", "first_0.pt"]


def test_a_checkpoint_that_would_run_something_does_not(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"state_dict": {"weight": Evil()}}, tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil()))
    for name in ("evil.pt", "plain.pt"):
        with pytest.raises(WeightsError, match="tensors"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_is_missing_or_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="No such file"):
        read_checkpoint(tmp_path / "epoch_1.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(WeightsError, match="holds no weights"):
        read_checkpoint(tmp_path / "list.pt")


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Any]:
    """A file of the best weights, and these."""
    folder = tmp_path_factory.mktemp("best")
    runner = make(folder)
    runner.register_hook(BestWeightsHook("accuracy"))
    train(runner, 1)
    return (folder / "best.safetensors").read_bytes(), runner.model.state_dict()


@settings(deadline=None, max_examples=80)
@given(at=st.integers(0, 2**20), bit=st.integers(0, 7))
def test_no_flipped_bit_changes_the_best_weights(best: Any, at: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "best.safetensors")
        path.write_bytes(best[0])
        flip(path, at % len(best[0]), bit)
        try:
            found = read_checkpoint(path)["state_dict"]
        except WeightsError:
            return
    assert_same(dict(found), dict(best[1]))


def test_names_with_and_without_module_fit(tmp_path: Path) -> None:
    model, other, weights = Tiny(), EpochBasedRunner(Tiny()), tmp_path / "weights.pt"
    torch.save({f"module.{name}": each for name, each in model.state_dict().items()}, weights)
    other.load_checkpoint(weights, strict=True)
    assert torch.equal(other.model.fc.weight, model.fc.weight)
    torch.save({"fc.weight": model.fc.weight}, weights)
    with pytest.raises(WeightsError, match=r"fc\.bias"):
        other.load_checkpoint(weights, strict=True)
    other.load_checkpoint(weights)


@pytest.mark.parametrize("path", [3, b"run", "a\0b"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    runner = EpochBasedRunner(Tiny())
    for use in (
        read_checkpoint, latest_checkpoint, runner.resume, runner.save_checkpoint,
        lambda path: EpochBasedRunner(Tiny(), work_dir=path),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="path"):
            use(path)
