"""``disteval fit`` and the example, as a user starts them."""

import ast
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from suites.helpers.command import invoke
from suites.helpers.needs import framework, needs
from suites.helpers.pictures import write_small_cifar10
from suites.helpers.processes import (
    is_running,
    ranks_below,
    run_plainly,
    start_as_from_a_terminal,
    wait_for,
)

torch = framework("torch")

import safetensors.torch  # noqa: E402
from disteval.estimator import EpochBasedRunner  # noqa: E402
from disteval.estimator.hooks import BestWeightsHook, Hook  # noqa: E402

from suites.estimator.tiny import Tiny, runner, training, validation  # noqa: E402

pytestmark = needs("torch")

TEST = 17
"""The number of test pictures, which no number of workers divides."""

EXAMPLE = Path(__file__).parents[2] / "examples" / "cifar10_fit_ray.py"


def disteval(*arguments: str) -> Any:
    """Run the command in this process, whose workers are others."""
    done = invoke(*arguments, CIFAR10_ROOT=None)
    assert done.exit_code == 0, done.stderr
    return done


def refused(*arguments: str) -> str:
    """Return what the command says when it refuses, with the exit status of wrong usage."""
    done = invoke("fit", *arguments, CIFAR10_ROOT=None)
    assert (done.exit_code, "Traceback" in done.stderr) == (2, False), done.output
    return " ".join(done.stderr.split())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with so few pictures that to train on them takes no time."""
    folder = tmp_path_factory.mktemp("cifar10")
    write_small_cifar10(folder, train=24, test=TEST)
    return folder


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, str]:
    work_dir = tmp_path_factory.mktemp("fit") / "work"
    report = work_dir.with_name("report.json")
    options = (f"--work-dir={work_dir}", "--epochs=2", "--resume=auto", f"--json={report}")
    done = disteval("fit", f"--data={data}", *options)
    return work_dir, json.loads(report.read_text()), done.stdout


def test_fit_prints_a_line_for_each_phase_and_reports_all(trained: Any) -> None:
    work_dir, report, printed = trained
    first, *lines = printed.splitlines()
    assert first.startswith("there is no")
    assert [line.split()[:3] for line in lines[:4]] == [
        ["epoch", str(epoch), mode] for epoch in (1, 2) for mode in ("train", "val")
    ]
    assert report["kind"] == "fit"
    assert [record["mode"] for record in report["records"]] == ["train", "val"] * 2
    assert [record["evaluated"] for record in report["records"][1::2]] == [TEST] * 2
    assert report["best"]["correct"] == max(r["correct"] for r in report["records"][1::2])
    assert str(work_dir / "best.safetensors") in lines[-1]


def test_eval_finds_the_integer_that_fit_found(trained: Any, data: Path, tmp_path: Path) -> None:
    work_dir, report, _ = trained
    options = (f"--weights={work_dir / 'best.safetensors'}", "--world-size=2")
    disteval("eval", f"--data={data}", *options, f"--json={tmp_path / 'eval.json'}")
    found = json.loads((tmp_path / "eval.json").read_text())
    assert found["metrics"]["accuracy"]["correct_top1"] == report["best"]["correct"]
    assert found["size"] == TEST


def test_fit_resumes_on_other_workers_and_keeps_earlier_trainings(
    trained: Any, data: Path, tmp_path: Path
) -> None:
    work_dir, _, _ = trained
    last = work_dir / "epoch_2.pt"
    last.write_bytes(last.read_bytes()[:-1000])
    arguments = [f"--data={data}", f"--work-dir={work_dir}", "--epochs=2"]
    assert "--resume" in refused(*arguments)
    arguments += ["--resume", "--world-size=1"]
    done = disteval("fit", *arguments, f"--json={tmp_path / 'report.json'}")
    assert str(last) in done.stderr
    assert "epoch_1.pt" in done.stderr
    records = json.loads((tmp_path / "report.json").read_text())["records"]
    assert [record["epoch"] for record in records if record["mode"] == "train"] == [2]


def test_fit_continues_with_the_settings_that_it_began_with(trained: Any, data: Path) -> None:
    arguments = [f"--data={data}", f"--work-dir={trained[0]}", "--resume"]
    for option in ("--lr=0.3", "--seed=7"):
        assert option.partition("=")[0] in refused(*arguments, option)


@pytest.mark.parametrize("damage", ["flipped", "of another program"])
def test_damaged_best_weights_are_refused_before_the_training(damage: str, tmp_path: Path) -> None:
    config = {"work_dir": str(tmp_path), "checkpoints": {}, "best": True, "epochs": 1}
    made = runner(config)
    made.run([training(config), validation(config)], [("train", 1), ("val", 1)])
    best = tmp_path / "best.safetensors"
    if damage == "of another program":
        safetensors.torch.save_file(made.model.state_dict(), best)
    content = bytearray(best.read_bytes())
    content[-5] ^= damage == "flipped"
    best.write_bytes(content)
    assert "best.safetensors" in refused(f"--work-dir={tmp_path}", "--resume")


@pytest.mark.parametrize("resume", ["", "--resume", "--resume=auto"])
def test_fit_never_begins_anew_in_place_of_a_damaged_checkpoint(
    resume: str, tmp_path: Path
) -> None:
    (tmp_path / "epoch_1.pt").write_bytes(b"the first half")
    arguments = [f"--work-dir={tmp_path}", *([resume] if resume else [])]
    assert "epoch_1.pt" in refused(*arguments)
    assert (tmp_path / "epoch_1.pt").read_bytes() == b"the first half"


def test_fit_refuses_a_folder_in_which_another_training_writes(tmp_path: Path) -> None:
    class Trains(Hook):
        def before_val_epoch(self, runner: Any) -> None:
            for resume in ([], ["--resume=auto"]):
                assert str(tmp_path) in refused(f"--work-dir={tmp_path}", *resume)

    other = EpochBasedRunner(Tiny(), work_dir=tmp_path)
    other.register_hook(BestWeightsHook("accuracy"))
    other.register_hook(Trains())
    assert len(other.run([validation({})], [("val", 1)])) == 1


def test_fit_resumes_nothing_unless_it_may_begin(tmp_path: Path) -> None:
    assert "--resume=auto" in refused(f"--work-dir={tmp_path / 'new'}", "--resume")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data=/nowhere"], "/nowhere"),
        (["--json=/nowhere/report.json"], "/nowhere"),
        (["--address=auto"], "'ray'"),
    ],
)
def test_what_can_not_work_ends_with_2_and_one_paragraph(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    told = refused(f"--work-dir={tmp_path / 'work'}", *arguments)
    assert (told.startswith("disteval fit: "), message in told) == (True, True), told


def test_ctrl_c_ends_a_training_and_its_workers(data: Path, tmp_path: Path) -> None:
    options = [f"--data={data}", "--epochs=500", f"--work-dir={tmp_path / 'work'}"]
    driver = start_as_from_a_terminal([sys.executable, "-m", "disteval.cli", "fit", *options])
    try:
        assert driver.stdout is not None
        assert driver.stdout.readline().startswith("epoch 1")
        workers = list(ranks_below(driver.pid).values())
        driver.send_signal(signal.SIGINT)
        assert driver.wait(90) == 130
        assert len(workers) == 2
        assert wait_for(lambda: not any(is_running(pid) for pid in workers))
    finally:
        driver.kill()
        driver.communicate()


def test_the_example_trains_without_ray() -> None:
    if not EXAMPLE.is_file():
        pytest.skip("the examples are not part of an installed package; run this from a clone")
    command = [sys.executable, str(EXAMPLE), "--launcher=local", "--epochs=1", "--samples=16"]
    command += ["--world-size=1"]
    done = run_plainly(command, Path.cwd(), 240)
    assert done.returncode == 0, done.stderr
    last = ast.literal_eval(done.stdout.splitlines()[-1])
    assert (last["epoch"], last["evaluated"]) == (1, 16)
    assert last["accuracy"] == last["correct"] / 16
