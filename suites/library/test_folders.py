"""What a stranger has put into a folder is not opened, run or written over."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from disteval import Leases, UsageError, evaluate, predict_all
from disteval.metrics import Mean

from suites.helpers.command import invoke
from suites.helpers.needs import needs

STRANGER = 12345


def _predictions(folder: Path) -> None:
    predict_all(lambda batch: batch, np.arange(6), "non_dist", folder=folder)


def _ledger(folder: Path) -> None:
    def update(outputs: Any, batch: Any) -> Any:
        return (outputs,)

    evaluate(
        lambda batch: batch, np.arange(6.0), {"mean": Mean()}, "non_dist", update=update,
        leases=Leases(), ledger=folder,
    )  # fmt: skip


def _training(folder: Path) -> None:
    from torch.utils.data import DataLoader

    from suites.estimator import tiny

    config = {"work_dir": folder, "epochs": 1, "log": {"interval": 1}, "checkpoints": {}}
    tiny.runner(config).run([DataLoader(tiny.samples(8), 4)], [("train", 1)])


WRITERS = pytest.mark.parametrize(
    "write", [_predictions, _ledger, pytest.param(_training, marks=needs("torch"))]
)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@WRITERS
@pytest.mark.parametrize("how", ["made it", "may write to it"])
def test_a_folder_of_a_stranger_is_refused(
    write: Callable[[Path], None], how: str, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "leader.json").write_text("{}")
    if how == "may write to it":
        folder.chmod(0o777)
    elif os.geteuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    else:
        pytest.skip("only root can give a folder to another user")
    before = _files(folder)
    found = "0777" if how == "may write to it" else str(STRANGER)
    with pytest.raises(UsageError, match=found):
        write(folder)
    assert _files(folder) == before


LINKS = [
    ".disteval.lock", "..manifest.json.part", "ledger-000001-0123456789abcdef.log",
    ".ledger-000001-0123456789abcdef.log", ".checkpoints.json.part", ".epoch_1.pt.part",
    "log.jsonl",
]  # fmt: skip


@WRITERS
@pytest.mark.parametrize("name", LINKS)
def test_a_link_is_not_followed(write: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    folder, mine = tmp_path / "folder", tmp_path / "mine"
    folder.mkdir()
    mine.write_text("important\n")
    (folder / name).symlink_to(mine)
    try:
        write(folder)
    except UsageError as error:
        assert str(folder) in str(error)
    assert mine.read_text() == "important\n"


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_predictions_follow_the_umask_and_a_ledger_is_private(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        _predictions(tmp_path / "predictions")
        _ledger(tmp_path / "ledger")
    finally:
        os.umask(before)
    for name, mode in [("predictions", 0o666 & ~umask), ("ledger", 0o600)]:
        assert {path.stat().st_mode & 0o777 for path in (tmp_path / name).iterdir()} == {mode}


@pytest.mark.parametrize("why", ["mode 0777", "mode 0644", "symbolic link"])
def test_a_stranger_leads_nobody(why: str, tmp_path: Path) -> None:
    folder, mine = tmp_path / "ledger", tmp_path / "mine"
    folder.mkdir()
    leader = {"host": "127.0.0.1", "port": 1, "key": "00" * 32, "folder": str(tmp_path)}
    mine.write_text(json.dumps(leader))
    mine.chmod(0o644 if why == "mode 0644" else 0o600)
    if why == "symbolic link":
        (folder / "leader.json").symlink_to(mine)
    else:
        mine.rename(folder / "leader.json")
    folder.chmod(0o777 if why == "mode 0777" else 0o755)
    done = invoke("eval", "--join", "--ledger", str(folder), "--world-size", "1")
    assert done.exit_code == 2
    assert why in done.output
