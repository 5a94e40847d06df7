"""Wrong usage of any command ends with 2, names the value, and changes no file.

A row of the table is a line as a user types it, and words that have to be in the message: what was
found, and where it helps what would be right.
"""

import shlex
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.contract import BaseDistBackend
from disteval_backends.threads_dist import ThreadsDist

from suites.helpers.command import disteval, invoke
from suites.helpers.needs import needs

HERE = "suites.cli.test_wrong_usage"

TASKS = """
import numpy as np
from disteval import Task
from disteval.metrics import Accuracy

data = np.zeros((9, 3))

def made(**more):
    return Task(samples=(data, np.zeros(9, int)), predict=len, metrics={"a": Accuracy()}, **more)

def task():
    return made()

def nothing():
    made()

def needing(path, device="cpu"):
    return made()

def leaving():
    raise SystemExit(7)

def wrong():
    return made(batch_size=0)

one = task()
"""


class Partial(BaseDistBackend):
    """A backend without most of its members."""

    is_initialized = False
    rank = 0


class OverNothing(ThreadsDist):
    """A backend whose library can't be imported."""

    preload = ("no_such_library.core",)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and folders that are wrong, each in its own way."""
    place = tmp_path_factory.mktemp("wrong")
    for name in ("there", "empty", "taken", "odd", "part/cifar-10-batches-bin"):
        (place / name).mkdir(parents=True)
    (place / "file").write_text("mine")
    (place / "mine.py").write_text("mine")
    (place / "own_task.py").write_text(TASKS)
    (place / "own_lib.py").write_text("import no_such_library\n")
    (place / "odd" / "leader.json").touch(0o600)
    (place / "odd" / "leader.json").write_text("[]")
    (place / "part" / "cifar-10-batches-bin" / "test_batch.bin").write_bytes(bytes(4000))
    (place / "w.safetensors").write_bytes(b"noise")
    with zipfile.ZipFile(place / "w.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"content")
    (place / "w.pt").write_bytes((place / "w.pt").read_bytes().replace(b"content", b"contort"))
    (place / "run.json").write_text('{"schema_version": 1, "kind": "check"}')
    (place / "link").symlink_to("same")
    return place


LINES: dict[str, tuple[str, ...]] = {
    # check: the backend, its rules and its ranks
    "check": ("--list",),
    "check thread": ("thread", "threads"),
    "check none:Backend": ("none:Backend", "ModuleNotFoundError"),
    f"check {HERE}:Missing": (f"{HERE}:Missing", "AttributeError"),
    f"check {HERE}:LINES": ("LINES", "BaseDistBackend"),
    f"check {HERE}:Partial": ("all_gather_object, broadcast_object, world_size",),
    f"check {HERE}:OverNothing --rules=1.1 --world-size=2": ("OverNothing", "no_such_library"),
    "check my.mod.Class": ("my.mod:Class",),
    "check my.mod": ("my.mod:Class",),
    "check threads --rules=77.*": ("77.*", "1.1, 1.2"),
    "check threads --world-size=0": ("'0'",),
    "check threads --launcher=ssh": ("ssh",),
    # eval: the backend, the ranks and ResNet-18's own options
    "eval --backend=torch_cup": ("torch_cup", "torch_cpu"),
    "eval --backend=non_dist --world-size=-1": ("-1",),
    "eval --backend=non_dist --world-size=2": ("world size 2",),
    "eval --launcher=ssh": ("ssh",),
    "eval --backend=non_dist --batch-size=0": ("--batch-size", "0"),
    "eval --backend=non_dist --topk=1,11": ("1,11",),
    "eval --backend=non_dist --topk=1,1": ("1,1",),
    "eval --backend=non_dist --topk=one": ("one",),
    "eval --backend=non_dist --framework=caffe": ("caffe",),
    "eval --backend=non_dist --download": ("--download", "--data"),
    "eval --backend=non_dist --data=/none": ("/none",),
    "eval --backend=non_dist --data=empty": ("empty", "cifar-10-batches-bin"),
    "eval --backend=non_dist --data=part": ("test_batch.bin", "3073"),
    "eval --backend=non_dist --data=part --download": ("data_batch_1.bin",),
    "eval --weights=/none.pt": ("/none.pt",),
    "eval --weights=w.safetensors": ("w.safetensors", "safetensors"),
    "eval --weights=w.pt": ("w.pt", "CRC-32"),
    # eval: a task of the user's own
    "eval own_task": ("own_task", "module:function"),
    "eval own_task.py:task": ("own_task.py", "module:function"),
    "eval own_task:": ("own_task:",),
    "eval 'own_task:a b'": ("own_task:a b",),
    "eval onw_task:task": ("onw_task", "own_task"),
    "eval own_task.inner:task --backend=threads": ("own_task.inner",),
    "eval own_task:tsak --backend=threads": ("tsak", "task"),
    "eval own_task:data --backend=threads": ("own_task:data", "ndarray"),
    "eval own_task:nothing --backend=threads": ("own_task:nothing", "None"),
    "eval own_task:needing --backend=threads": ("own_task:needing", "path"),
    "eval own_task:leaving --backend=threads": ("own_task:leaving", "7"),
    "eval own_task:wrong --backend=threads": ("batch_size", "0"),
    "eval own_lib:task --backend=threads": ("own_lib", "no_such_library"),
    "eval own_task:task --backend=threads --device=cpu": ("--device", "own_task:task"),
    "eval own_task:one --backend=threads --device=cpu": ("--device", "own_task:one"),
    **{
        f"eval own_task:task --backend=threads {option}": (option.partition("=")[0], "own_task")
        for option in (
            "--framework=jax", "--weights=w.pt", "--topk=1", "--dtype=bfloat16", "--exact",
            "--data=x", "--download",
        )
    },
    "eval own_task:task --backend=threads --overwrite": ("--overwrite", "--predictions"),
    "eval own_task:task --backend=threads --predictions-format=npy": ("--predictions DIR",),
    "eval own_task:task --backend=threads --ranks-per-lease=2": ("--elastic",),
    "eval own_task:task --backend=threads --predictions=file": ("--predictions", "file"),
    # eval: leases
    "eval own_task:task --elastic --backend=threads": ("--backend",),
    "eval own_task:task --elastic --join": ("--ledger",),
    "eval own_task:task --elastic --join --ledger=nowhere": ("nowhere",),
    "eval own_task:task --elastic --join --ledger=odd": ("odd",),
    "eval own_task:task --elastic --launcher=threads --ranks-per-lease=2": ("3", "2"),
    "eval own_task:task --elastic --launcher=torchrun": ("torchrun", "lost"),
    # fit
    "fit --data=/none": ("/none",),
    "fit --download": ("--download", "--data"),
    "fit --data=part --download": ("data_batch_1.bin",),
    "fit --work-dir=file": ("--work-dir file",),
    "fit --work-dir=file/new": ("--work-dir file/new",),
    "fit --work-dir=/proc/new/folder": ("--work-dir /proc/new/folder",),
    # times and rates
    **{
        f"{option} {value}": (option.split()[1], value)
        for option in ("doctor --timeout", "audit --seconds", "fit --lr")
        for value in ("nan", "inf", "0")
    },
    # files that can't be written, or that replace each other
    **{
        f"{command} {path}": (command.split()[-1], path[:200])
        for command in (
            "check threads --json", "check threads --html", "eval --json", "fit --json",
            "report --html",
        )
        for path in ("there", "none/file", "file/file", "/proc/file", "x" * 300)
    },
    "check threads --json same --html same": ("--json", "--html", "same"),
    "eval --json same --trace same": ("--json", "--trace", "same"),
    "report --html same --badge ./same": ("--html", "--badge", "same"),
    "trace run --json same --svg link": ("--json", "--svg", "link"),
    "report run.json --html=./run.json": ("run.json",),
    "report run.json --html=new.html": ("run.json", "version"),
    "report --html=new.html": ("--json", "--trace"),
    # new
    **{f"new {name!r}": (repr(name),) for name in ("a-b", "folder/own", "1st", "", "../own")},
    **{f"new {name}": (repr(name),) for name in ("json", "numpy", "disteval", "taken")},
    "new mine": ("mine.py", "mine_2"),
}  # fmt: skip


_PAGE = {line: needs("jinja2") for line in LINES if "report" in line or "--html" in line}
"""What lines need that write a page."""


@pytest.mark.parametrize("line", [pytest.param(line, marks=_PAGE.get(line, ())) for line in LINES])
def test_wrong_usage_ends_with_2_and_names_what_was_found(line: str, made: Path) -> None:
    before = _files(made)
    done = disteval(made, *shlex.split(line), CIFAR10_ROOT="")
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert f"disteval {line.split()[0]}" in done.stderr
    assert "Traceback" not in done.stderr
    for word in LINES[line]:
        assert word in " ".join(done.stderr.split())
    assert _files(made) == before


def _files(folder: Path) -> dict[str, Any]:
    """Return what is in a folder, but for what Python writes there itself."""
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if "__pycache__" not in path.parts
    }


def test_the_data_folder_comes_from_the_environment_unless_it_is_given() -> None:
    variable = {"CIFAR10_ROOT": "/variable"}
    assert "/variable" in invoke("eval", "--backend=non_dist", **variable).stderr
    given = invoke("eval", "--backend=non_dist", "--data=/given", **variable).stderr
    assert "/given" in given and "/variable" not in given


@pytest.mark.parametrize("command", ["eval", "check threads", "fit", "doctor"])
@pytest.mark.parametrize(
    "variables",
    [
        {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "3"},
        {"PMI_RANK": "five", "PMI_SIZE": "2"},
        {"PMI_RANK": "5", "PMI_SIZE": "2"},
        {"PMIX_RANK": "0"},
        {"PMI_RANK": "0"},
        {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "2"},
    ],
    ids=str,
)
def test_a_launcher_that_can_not_be_joined_is_wrong_usage(
    command: str, variables: dict[str, str]
) -> None:
    done = invoke(*command.split(), **variables)
    assert done.exit_code == 2
    [line] = done.stderr.splitlines()
    assert next(iter(variables)) in line


def test_commands_that_start_no_ranks_run_under_any_launcher() -> None:
    for command in ("backends", "doctor threads --no-start", "check --list"):
        assert invoke(*command.split(), PMI_RANK="five", PMI_SIZE="2").exit_code == 0


@pytest.mark.parametrize(("rank", "on_host", "lines"), [(0, 2, 1), (1, 2, 0), (1, 1, 1)])
def test_wrong_usage_is_said_by_one_rank_of_a_host_at_least(
    rank: int, on_host: int, lines: int
) -> None:
    started = {
        "TORCHELASTIC_RUN_ID": "a", "RANK": str(rank), "WORLD_SIZE": "2",
        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(on_host),
    }  # fmt: skip
    done = invoke("eval", "--json=/none/r.json", **started)
    assert done.exit_code == 2
    assert done.stderr.count("/none/r.json") == lines
