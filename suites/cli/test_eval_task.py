"""``disteval eval module:task`` evaluates a user's own task."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from disteval import Predictions, load_predictions
from disteval.models import default_weights, save_weights

from suites.helpers.command import invoke
from suites.helpers.namespaces import run_alone
from suites.helpers.needs import framework, needs
from suites.helpers.pictures import SIZES
from suites.helpers.processes import (
    left_over,
    processes_below,
    ranks_below,
    run_on_a_terminal,
    start_as_from_a_terminal,
    wait_for,
)

PICTURES = SIZES["test"]
TASK = """
import numpy as np
from disteval import Task
from disteval.data import ArrayDataset
from disteval.metrics import Accuracy, ConfusionMatrix

rng = np.random.default_rng(0)
data = ArrayDataset(
    "made", rng.integers(0, 256, (101, 3, 2, 2), dtype=np.uint8), rng.integers(0, 3, 101),
    tuple("abc"),
)

def predict(images):
    return images.reshape(len(images), -1)[:, :3].astype(np.float32)

def task():
    return made()

def made(**more):
    metrics = {"accuracy": Accuracy(), "confusion": ConfusionMatrix(3)}
    return Task(samples=data, predict=predict, metrics=metrics, batch_size=16, **more)
"""

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Return a function that writes a module of tasks and runs disteval eval in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def run(name: str, *options: str, code: str = "", size: int = 3, task: str = TASK) -> Result:
        (tmp_path / "own.py").write_text(task + code)
        sys.modules.pop("own", None)
        return invoke(
            "eval", name, "--backend=threads", f"--world-size={size}", *options, COLUMNS="100"
        )

    yield run
    for name in set(sys.modules) - before:
        if name.startswith("own"):
            del sys.modules[name]


def read(path: str = "r.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


def test_a_task_has_one_result_at_every_world_size(run: Run) -> None:
    found = []
    for size in (1, 2, 3):
        done = run("own:task", "--json=r.json", size=size)
        assert done.exit_code == 0, done.output
        report = read()
        assert (report["task"], report["world_size"]) == ("own:task", size)
        assert report["size"] == 101
        assert (report["padded"] == 0) == (size == 1)
        assert (report["coverage"], report["batch_size"]) == ("exact", 16)
        rate = report["samples_per_second"]
        assert rate == pytest.approx(101 / report["seconds"])
        found.append(report["metrics"])
    assert found[1:] == found[:1] * 2
    assert sum(map(sum, found[0]["confusion"]["matrix"])) == 101


def test_other_samples_than_those_that_are_expected_are_refused(run: Run) -> None:
    assert run("own:task", "--json=r.json", size=1).exit_code == 0
    digest = read()["digest"]
    same = run("own:task", f"--expect-digest={digest}", "--json=r.json", size=2)
    assert same.exit_code == 0, same.output
    assert digest in same.output
    assert (read()["digest"], read()["coverage"], read()["compared"]) == (digest, "exact", 101)
    Path("p.jsonl").write_text("good")
    options = ("--predictions=p.jsonl", "--overwrite", "--json=x.json")
    other = run("own:task", f"--expect-digest={digest}", "--limit=100", *options)
    assert (other.exit_code, Path("p.jsonl").read_text()) == (2, "good")
    words = " ".join(other.output.split())
    assert digest in words
    assert len(set(re.findall("[0-9a-f]{16}", words))) == 2
    assert not Path("x.json").exists()
    assert run("own:task", "--expect-digest=abc").exit_code == 2


def test_ranks_that_get_one_task_do_not_share_its_metrics(run: Run) -> None:
    code = "shared = task()\ndef again():\n    return shared\n"
    metrics = []
    for name in ("own:task", "own:shared", "own:again"):
        done = run(name, "--json=r.json", code=code)
        assert done.exit_code == 0, done.output
        metrics.append(read()["metrics"])
    assert metrics[1:] == metrics[:1] * 2


def test_a_task_gets_the_device_the_words_and_the_backend_that_it_asks_for(run: Run) -> None:
    code = """
def task(device, backend, arguments, more=1):
    print(f"<{device} {backend.world_size} {arguments} {more}>")
    return made()
"""
    for options, device in ((), "cpu"), (("--device=cuda",), "cuda"):
        for words in [], ["--seed", "-1", "x y"]:
            done = run("own:task", *options, *["--"] * bool(words), *words, code=code)
            assert done.exit_code == 0, done.output
            assert done.output.count(f"<{device} 3 {words} 1>") == 3, done.output
    done = run("own:task", "--", "--seed=1", code="def task():\n    return made()\n")
    assert done.exit_code == 2 and "--seed=1" in done.output
    assert "own:task is a function without the parameter arguments" in done.output


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def task():\n    raise LookupError('no file')\n", "LookupError: no file (own.py, line "),
        ("raise LookupError('at import')\n", "LookupError: at import (own.py, line "),
        ("def task(:\n", "SyntaxError: "),
        ("def task():\n    return Task(samples=data)\n", "TypeError: "),
    ],
)
def test_an_error_of_a_task_is_one_error_for_all_ranks(run: Run, code: str, message: str) -> None:
    done = run("own:task", code=code)
    assert done.exit_code == 1
    [line] = done.output.splitlines()
    assert "rank 0" in line and "own:task" in line
    assert message in line


def test_an_error_of_a_model_is_one_line_where_ranks_are_threads(tmp_path: Path) -> None:
    code = "\ndef predict(batch):\n    raise ValueError('at a batch')\n"
    (tmp_path / "own.py").write_text(TASK + code)
    done = subprocess.run(
        [sys.executable, "-m", "disteval.cli", "eval", "own:task", "--backend=threads"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    [line] = done.stderr.splitlines()
    assert (done.returncode, "ValueError: at a batch" in line) == (1, True)


def test_a_folder_in_the_environment_is_not_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIFAR10_ROOT", "/none")
    assert run("own:task").exit_code == 0


def test_the_bar_has_a_rate_and_the_time_left_or_a_rate_and_a_count(
    run: Run, tmp_path: Path
) -> None:
    code = """
def pairs():
    return ((image, label) for image, label in zip(data.images, data.labels))

def stream():
    return Task(samples=pairs, predict=predict, metrics={"accuracy": Accuracy()}, batch_size=16)
"""
    (tmp_path / "own.py").write_text(TASK + code)
    command = [sys.executable, "-m", "disteval.cli", "eval", "--backend=threads"]
    sized, stream = (
        run_on_a_terminal([*command, f"own:{name}"], cwd=tmp_path) for name in ("task", "stream")
    )
    assert re.search(r"\r100%\|.*\| 111/111 \[\d\d:\d\d<00:00, *[\d.]+ samples/s\]\r", sized)
    assert re.search(r"\r101 samples \[\d\d:\d\d, *[\d.]+ samples/s\]\r", stream)
    assert "%|" not in stream


RECORDED = """
def recorded():
    def record(scores, batch):
        return {"best": scores.argmax(axis=1), "label": batch[1]}
    return made(record=record, name="version 3")
"""


INTERRUPTED = """
import os

def interrupted():
    calls = iter(range(int(os.environ.get("OWN_CALLS", 99))))
    def predict_or_fail(images):
        if next(calls, None) is None:
            raise ValueError("the machine is taken away")
        return predict(images)
    return Task(samples=data, predict=predict_or_fail, metrics={"accuracy": Accuracy()},
                batch_size=16, name=os.environ.get("OWN_NAME", "step 1000"))

def other():
    return interrupted()
"""


@pytest.mark.parametrize("folder", ["--predictions", "--ledger"])
def test_a_run_that_goes_on_says_so_and_refuses_another_task(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISTEVAL_CANARY", "off")  # for calls of the model are counted

    def evaluate(task: str) -> Result:
        Path("own.py").write_text(TASK + INTERRUPTED)
        sys.modules.pop("own", None)
        ways = ["--backend=threads"] if folder == "--predictions" else []
        words = [f"{folder}=there", "--json=r.json", "--world-size=1", *ways]
        return invoke("eval", task, *words, COLUMNS="100")

    monkeypatch.setenv("OWN_CALLS", "2")
    first = evaluate("own:interrupted")
    assert first.exit_code == 1, first.output
    monkeypatch.delenv("OWN_CALLS")
    monkeypatch.setenv("OWN_NAME", "step 2000")
    for task, names in [("own:interrupted", "step 1000"), ("own:other", "own:other")]:
        refused = evaluate(task)
        words = " ".join(refused.output.split())
        assert refused.exit_code == 2, words
        assert all(each in words for each in (names, "step 2000", "another folder"))
    monkeypatch.delenv("OWN_NAME")
    done = evaluate("own:interrupted")
    assert done.exit_code == 0, done.output
    report = read()
    stored = report["stored"]
    assert (stored in (16, 32), report["size"]) == (True, 101)
    assert f"{stored} of 101" in done.output
    assert report["stored_since"] in done.output
    rate = (101 - stored) / report["seconds"]
    assert report["samples_per_second"] == pytest.approx(rate)


SLOW = """
import time
import numpy as np
from disteval import Task

def predict(x):
    time.sleep(0.02)
    print(len(x), file=open("asked", "a"), flush=True)
    return x

def task():
    return Task(samples=np.arange(80 * {0}), predict=predict, metrics={{}}, batch_size={0})
"""


SOCKETS = "suites.mutants.sockets:Sockets"


def start_slow(batch_size: int, folder: Path, backend: str = SOCKETS) -> subprocess.Popen[str]:
    """Start a command of two ranks whose batches take a while."""
    (folder / "own.py").write_text(SLOW.format(batch_size))
    (folder / "asked").touch()
    words = ["eval", "own:task", "--world-size=2", "--predictions=p", "--no-progress"]
    words += [f"--backend={backend}"]
    return start_as_from_a_terminal([sys.executable, "-m", "disteval.cli", *words], cwd=folder)


def ended_by(
    number: signal.Signals, batches: int, batch_size: int, folder: Path, backend: str = SOCKETS
) -> int:
    """End a command of two ranks by a signal; return how many samples they had evaluated."""
    with start_slow(batch_size, folder, backend) as process:
        assert wait_for(lambda: len((folder / "asked").read_text().split()) > batches)
        below = processes_below(process.pid)
        process.send_signal(number)
        assert process.wait(60) == (130 if number != signal.SIGKILL else -number)
    assert left_over(below) == []
    return batch_size * len((folder / "asked").read_text().split())


def test_a_killed_rank_ends_the_command(tmp_path: Path) -> None:
    with start_slow(2, tmp_path) as process:
        assert wait_for(lambda: (tmp_path / "asked").read_text())
        ranks = ranks_below(process.pid)
        os.kill(ranks[1], signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "rank 1" in said, "SIGKILL" in said) == (1, True, True), said
    assert left_over(ranks.values()) == []


@pytest.mark.parametrize("backend", [SOCKETS, "threads"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("without_canary")
def test_an_interrupt_loses_no_prediction_of_a_finished_batch(
    number: signal.Signals, backend: str, tmp_path: Path
) -> None:
    finished = ended_by(number, 30, 2, tmp_path, backend)
    kept = sum(len(path.read_text().split("\n")) - 1 for path in tmp_path.glob("p/part-*.jsonl"))
    assert finished - 4 <= kept <= finished  # each rank was in one batch


@pytest.mark.usefixtures("without_canary")
def test_a_killed_leader_loses_at_most_one_part_of_each_rank(run: Run, tmp_path: Path) -> None:
    finished = ended_by(signal.SIGKILL, 60, 4096, tmp_path)
    done = run("own:task", "--predictions=p", "--json=r.json", size=3, task=SLOW.format(4096))
    assert done.exit_code == 0, done.output
    lost = finished - read()["stored"]
    assert 0 <= lost <= 2 * (Predictions("p").rows_per_part + 4096)  # each rank was in one batch
    assert len(load_predictions("p")) == 80 * 4096


@needs("torch", "torchmetrics")
def test_the_report_says_device_and_the_packages_that_the_task_imported(run: Run) -> None:
    code = """
import torch, torchmetrics
def on_torch():
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 3).eval()
    def scores(images):
        with torch.no_grad():
            return model(torch.from_numpy(images.reshape(-1, 12).astype("float32")))
    return Task(samples=data, predict=scores, metrics={})
"""
    done = run("own:on_torch", "--json=r.json", "--timeout=240", code=code)  # imports much
    assert done.exit_code == 0, done.output
    report = read()
    assert report["device"] == "cpu"
    assert report["versions"]["torchmetrics"] == metadata.version("torchmetrics")


@pytest.mark.parametrize("kind", ["jsonl", pytest.param("parquet", marks=needs("pyarrow"))])
def test_predictions_as_one_file_are_in_the_order_of_the_samples(run: Run, kind: str) -> None:
    file = Path(f"p.{kind}")
    options = ("--batch-size=4", f"--predictions={file}", "--json=r.json")
    assert run("own:recorded", *options, code=RECORDED).exit_code == 0
    if kind == "jsonl":
        ids = [json.loads(line)["sample_id"] for line in file.read_text().splitlines()]
    else:
        ids = framework("pyarrow.parquet").read_table(file)["sample_id"].to_pylist()
    assert ids == list(range(101))
    assert read()["predictions"] == str(file.absolute())
    assert not Path(f"{file}.parts").exists()
    done = run("own:recorded", *options, code=RECORDED)
    assert done.exit_code == 2 and str(file) in done.output  # never replaced unasked
    assert run("own:recorded", *options, "--overwrite", code=RECORDED).exit_code == 0
    assert run("own:recorded", *options, "--predictions-format=npy").exit_code == 2


def test_a_finished_ledger_writes_predictions_again_that_were_removed(run: Run) -> None:
    found = []
    for stored in (0, 101, 0):
        if len(found) == 2:
            shutil.rmtree("p")
        words = ["--predictions=p", "--ledger=there", "--launcher=threads", "--json=r.json"]
        Path("own.py").write_text(TASK)
        done = invoke("eval", "own:task", "--world-size=2", *words)
        assert (done.exit_code, read()["stored"]) == (0, stored), done.output
        found.append(load_predictions("p").all().tolist())
    assert found[0] == found[1] == found[2]


ON_A_SMALL_DISK = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k,mode=0700", "none", "disk"], check=True)
words = ["eval", "own:task", "--backend=threads", "--predictions=disk/p", "--json=r.json"]
command = [sys.executable, "-m", "disteval.cli", *words]
done = subprocess.run(command, capture_output=True, text=True, check=False)
print(done.returncode, done.stderr, end="")
"""


def test_predictions_on_a_full_disk_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("disk").mkdir()
    Path("own.py").write_text(TASK.replace("101", "9001"))
    printed = run_alone(ON_A_SMALL_DISK, folder=tmp_path)
    [line] = printed.splitlines()
    assert line.startswith("1 ") and "disk/p" in line and "No space left" in line
    assert not Path("r.json").exists()


@needs("torch")
def test_a_ledger_of_resnet18_with_other_weights_or_settings_is_refused_by_name(
    tmp_path: Path, small_cifar10: Path
) -> None:
    save_weights(tmp_path / "w.safetensors", default_weights() | {"fc.bias": np.zeros(10, "f4")})
    words = ["eval", f"--data={small_cifar10}", f"--ledger={tmp_path / 'ledger'}"]
    words += ["--launcher=threads", "--world-size=1", f"--json={tmp_path / 'r.json'}"]
    assert invoke(*words).exit_code == 0
    for option, said in {
        f"--weights={tmp_path / 'w.safetensors'}": "the weights that ship",
        "--exact": "float32, exact",
        "--dtype=bfloat16": "bfloat16",
    }.items():
        done = invoke(*words, option)
        told = " ".join(done.output.split())
        assert (done.exit_code, said in told, "name" in told) == (2, True, True), told
        assert "accuracy" not in done.stdout
    assert invoke(*words).exit_code == 0
    assert read(str(tmp_path / "r.json"))["stored"] == PICTURES
