"""The records of lm-eval on any number of ranks, with ranks that are lost, and resumed."""

import json
import re
import runpy
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from disteval import DataError, HarnessError, Leases, RankError, UsageError
from disteval.contract import BaseDistBackend
from disteval.evaluation.evaluate import evaluate_task

from suites.helpers.command import disteval, invoke
from suites.helpers.namespaces import run_alone
from suites.helpers.needs import needs
from suites.helpers.thread_world import run_ranks, values

pytestmark = [needs("lm_eval"), needs("polars")]

EXAMPLE = Path("examples", "lm_eval")
CLONE = Path(__file__).parents[2]
VOLATILE = {
    "date", "start_time", "end_time", "total_evaluation_time_seconds", "pretty_env_info",
    "git_hash",
}  # fmt: skip

TOY = """
import os, random, signal, zlib
from functools import partial
from pathlib import Path
import lm_eval.models, lm_eval.tasks
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from disteval.lm_eval import task

if __name__ == "toy":  # on a rank; reading lm-eval's own tasks takes 5 s
    lm_eval.tasks.TaskManager = partial(lm_eval.tasks.TaskManager, include_defaults=False)

@register_model("toy")
class Toy(LM):
    def __init__(self, fails="", wrong="", least=0, batch_size=0, device=None):
        super().__init__()
        self.fails, self.least, self.wrong = fails, least, wrong

    def number(self, text):
        if self.fails and Path(self.fails).exists() and zlib.crc32(text.encode()) % 13 == 0:
            Path(self.fails).unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.wrong and Path(self.wrong).exists() and zlib.crc32(text.encode()) % 7 == 0:
            Path(self.wrong).unlink()
            raise OSError("the connection is lost")
        return zlib.crc32(text.encode()) / 2**32

    def loglikelihood(self, requests):
        found = [(-self.number("".join(each.args)), False) for each in requests]
        return found[self.least:] or None

    def loglikelihood_rolling(self, requests):
        return [-self.number(*each.args) for each in requests]

    def generate_until(self, requests):
        drawn = [random.random() if each.args[1].get("do_sample") else 0 for each in requests]
        return [str(int(100 * self.number(each.args[0]) + 1e6 * draw))
                for each, draw in zip(requests, drawn)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the example's tasks and a model, which is registered as toy."""
    if not (CLONE / EXAMPLE).exists():
        pytest.skip("the example is not part of an installed package")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(CLONE / EXAMPLE, EXAMPLE)
    data = EXAMPLE / "tasks" / "data.jsonl"
    data.write_text("".join(data.read_text().splitlines(keepends=True)[:10]))
    (tmp_path / "toy.py").write_text(TOY)
    import lm_eval.models  # noqa: F401 - registers its own, before ours
    from lm_eval.api.registry import model_registry
    from lm_eval.tasks import TaskManager

    own = partial(TaskManager, include_defaults=False)
    monkeypatch.setattr("lm_eval.tasks.TaskManager", own)
    if "toy" not in set(model_registry.keys()):
        runpy.run_path(str(tmp_path / "toy.py"))
    return tmp_path


def words(out: str = "", tasks: str = "sums,sums_written,stories", **more: Any) -> list[str]:
    given = {"model": "toy", "tasks": tasks, "include_path": EXAMPLE / "tasks"}
    given |= {"num_fewshot": 1} | more
    if out:
        given |= {"output_path": out}
    return [*(f"--{name}={value}" for name, value in given.items()), *["--log_samples"] * bool(out)]


def one_process(*arguments: str) -> None:
    """Evaluate as ``lm-eval run`` does."""
    from lm_eval.__main__ import cli_evaluate

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["lm-eval", "run", *arguments])
        cli_evaluate()


def on_ranks(ranks: int, arguments: list[str], **options: Any) -> Any:
    from disteval.lm_eval import task

    def rank(backend: BaseDistBackend) -> Any:
        return task(arguments, backend).evaluate(backend, **options)

    return values(run_ranks(ranks, rank))[0]


def records(out: str) -> dict[str, Any]:
    """Return the samples as bytes, and the results without times."""
    assert not [*Path(out).parent.glob(f".{out}-*")]
    [results] = Path(out).rglob("results_*.json")
    found = {key: value for key, value in json.loads(results.read_bytes()).items()
             if key not in VOLATILE}  # fmt: skip
    samples = {path.name.rpartition("_")[0]: path.read_bytes()
               for path in Path(out).rglob("samples_*.jsonl")}  # fmt: skip
    assert len(samples) == len(found["configs"])
    return found | samples


def test_records_are_those_of_one_process_in_any_world(folder: Path) -> None:
    one_process(*words("one"))
    whole = records("one")
    for ranks, options in [(1, {}), (3, {}), (2, {"leases": Leases()})]:
        found = on_ranks(ranks, words("out"), **options)
        assert found.coverage == "exact" and found.size == 10 * (4 + 1 + 2 + 1)
        assert records("out") == whole
        path = next(Path("out").rglob("results_*.json")).parent
        verified = invoke("verify", str(path), "--task=sums_choice", "--score=acc")
        assert verified.exit_code == 0, verified.output
        shutil.rmtree("out")
    assert found.metrics["lm_eval"]["sums"]["acc"] == whole["results"]["sums"]["acc,none"]


HF = {"model": "hf", "model_args": "pretrained=model", "batch_size": 4, "device": "cpu"}


@needs("accelerate")
@pytest.mark.parametrize("chat", [False, True])
def test_batches_are_those_that_lm_eval_makes(folder: Path, chat: bool) -> None:
    runpy.run_path(str(EXAMPLE / "make_model.py"))
    more = HF | ({"apply_chat_template": True} if chat else {})
    arguments = words("one", "sums,sums_written", **more)
    one_process(*arguments)
    on_ranks(2, words("two", "sums,sums_written", **more))
    assert records("two") == records("one")


@needs("torch_cpu")
def test_what_a_model_draws_is_the_same_in_any_world(folder: Path) -> None:
    more = {"gen_kwargs": "do_sample=True", "requests_per_call": 4}
    on_ranks(1, words("1", "sums_written", **more))
    for out, how in [("2", "--backend=torch_cpu"), ("3", "--elastic")]:
        eval_ = ("eval", "toy:task", how, f"--world-size={out}", "--no-progress")
        done = disteval(folder, *eval_, "--", *words(out, "sums_written", **more))
        assert done.returncode == 0, done.stderr
        assert records(out) == records("1")
    lines = records("1")["samples_sums_written"].splitlines()
    assert all(first != second for [[first, second]] in (json.loads(e)["resps"] for e in lines))


FSDP = {"distributed_config": {"fsdp_size": 2}}


@needs("accelerate", "torch_cpu")
@pytest.mark.parametrize(
    "how, sharing",
    [
        ("--elastic --ranks-per-lease=2 --world-size=4", FSDP),
        ("--backend=torch_cpu --world-size=2", {"tp_plan": "auto"}),
    ],
)
def test_ranks_share_a_model(folder: Path, how: str, sharing: dict[str, Any]) -> None:
    runpy.run_path(str(EXAMPLE / "make_model.py"))
    one_process(*words("one", "sums,sums_written", **HF))
    more = HF | {"model_args": json.dumps({"pretrained": "model"} | sharing)}
    arguments = words("two", "sums,sums_written", **more)
    eval_ = ("eval", "toy:task", *how.split(), "--no-progress", "--timeout=300")
    done = disteval(folder, *eval_, "--", *arguments)
    assert done.returncode == 0, done.stderr
    one, two = records("one"), records("two")
    if "tp_plan" in sharing:  # it adds up in another order
        for name, metrics in one["results"].items():
            numbers = {key: v for key, v in metrics.items() if isinstance(v, float)}
            found = {key: two["results"][name][key] for key in numbers}
            assert found == pytest.approx(numbers, rel=1e-5)
    else:
        given = {"config", "configs"}  # which name model_args
        assert [two[name] for name in one.keys() - given] == [one[e] for e in one.keys() - given]


def test_an_evaluation_goes_on_after_kill_9_elsewhere(folder: Path) -> None:
    one_process(*words("one", model_args="fails=flag"))
    (folder / "flag").touch()
    eval_ = ("eval", "toy:task", "--elastic", "--ledger=ledger", "--no-progress", "--world-size=2")
    done = disteval(folder, *eval_, "--", *words("out", model_args="fails=flag"))
    assert done.returncode == 0 and "killed by SIGKILL" in done.stderr, done.stderr
    assert records("out") == records("one")


def test_what_was_answered_is_kept_and_changed_settings_are_named(folder: Path) -> None:
    one_process(*words("one", "sums_written", model_args="wrong=gone"))
    small = words("out", "sums_written", requests_per_call=2, model_args="wrong=gone")
    (folder / "gone").touch()
    with pytest.raises(RankError, match="the connection is lost"):
        on_ranks(2, small, ledger="ledger")
    changed = [
        ("num_fewshot", words("out", "sums_written", requests_per_call=2, num_fewshot=0)),
        ("gen_kwargs", [*small, "--gen_kwargs=temperature=1"]),
        ("model_args", words("out", "sums_written", requests_per_call=2)),
        ("output_path", words("other", "sums_written", requests_per_call=2)),
    ]
    for name, arguments in changed:
        with pytest.raises(
            UsageError, match=f"{name} of the metric 'lm_eval' is .* there and .* h"
        ):
            on_ranks(1, arguments, ledger="ledger")
    yaml = EXAMPLE / "tasks" / "sums_written.yaml"
    before = yaml.read_text()
    yaml.write_text(before.replace("majority_vote", "take_first"))
    with pytest.raises(UsageError, match="the configuration of sums_written of the metric"):
        on_ranks(1, small, ledger="ledger")
    yaml.write_text(before)
    found = on_ranks(3, small, ledger="ledger", leases=Leases())
    assert 0 < found.stored < found.size
    assert records("out") == records("one")
    assert on_ranks(1, small, ledger="ledger").stored == found.size


@pytest.mark.parametrize(
    "documents, told",
    [
        ([10, 9], "did not ask 4 of 40 requests again .* first is .* 0 about document 9 of sums_"),
        ([9, 10], "there is no answer to the loglikelihood request 0 about document 9 of sums_"),
    ],
)
def test_tasks_that_draw_other_requests_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, documents: list[int], told: str
) -> None:
    size = iter(documents)  # when the requests are built, and when the result is computed
    monkeypatch.setattr("lm_eval.evaluator.get_sample_size", lambda *_: next(size))
    with pytest.raises(DataError, match=told):
        on_ranks(1, words("out", "sums_choice"))
    assert not Path("out").exists()


def test_records_are_compared_and_verified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")  # a rank of torchrun, on which lm-eval returns nothing
    for shots in (0, 1):
        on_ranks(2, words(f"{shots}", "sums_choice", num_fewshot=shots))
    homes = [str(next(Path(f"{shots}").rglob("results_*.json")).parent) for shots in (0, 1)]
    how = ("--task=sums_choice", "--score=acc")
    done = invoke("compare", *homes, *how)
    assert done.exit_code == 0 and "10 of 10" in done.output, done.output
    [samples] = Path(homes[1]).glob("samples_*.jsonl")
    samples.write_bytes(b"".join(samples.read_bytes().splitlines(keepends=True)[:-1]))
    verified = invoke("verify", homes[1], *how)
    assert verified.exit_code == 1 and "9" in verified.output, verified.output


BAD = {
    "no such task": ({"tasks": "addition"}, UsageError, "Tasks not found: addition"),
    "no such model": ({"model": "tiy"}, UsageError, "--model.*'tiy'"),
    "no such option": ({"few_shot": 1}, UsageError, "unrecognized arguments: --few_shot=1"),
    "another cache": ({"use_cache": "x"}, UsageError, "--use_cache of lm-eval can't be used"),
    "no such file": ({"tasks": "lost"}, DataError, r"the requests of \['lost'\]: .*network"),
    "no such argument": ({"model_args": "x=1"}, UsageError, "--model_args {'x': 1}: .*'x'"),
    "too few answers": (
        {"model_args": "least=1"},
        RankError,
        "returned 39 answers to 40 requests, of which the first is .* of sums_choice",
    ),
    "None": ({"model_args": "least=99"}, RankError, "returned 0 answers to 40 requests"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence_on_every_rank(folder: Path, name: str) -> None:
    more, kind, text = BAD[name]
    base = (EXAMPLE / "tasks" / "sums_choice.yaml").read_text()
    lost = base.replace("task: sums_choice", "task: lost\ndataset_kwargs: {data_files: no.jsonl}")
    (EXAMPLE / "tasks" / "lost.yaml").write_text(lost)
    arguments = words(**{"tasks": "sums_choice"} | more)

    def rank(backend: BaseDistBackend) -> None:
        from disteval.lm_eval import task

        with pytest.raises(HarnessError, match=text) as caught:
            evaluate_task(lambda: task(arguments, backend), backend, None, False, None, None)
        assert isinstance(caught.value, kind)

    values(run_ranks(2, rank))


FULL = """
import os, subprocess, sys
sys.path.insert(0, os.getcwd())
import toy
from pathlib import Path
from suites.helpers.thread_world import run_ranks
from suites.records.test_lm_eval import words
subprocess.run("mount -t tmpfs -o size=64k,mode=0700 none disk".split(), check=True)
Path("disk", "ballast").write_bytes(bytes((1 << 16) - 4096))
def rank(backend):
    out, ledger = sys.argv[1:]
    toy.task(words(out, "sums_choice"), backend).evaluate(backend, ledger=ledger)
for error in run_ranks(2, rank):
    print(type(error).__name__, *str(error).splitlines())
print(*sorted(str(each) for each in Path("disk").rglob("*.json*")))
"""


@pytest.mark.parametrize(
    "out, ledger, told",
    [
        ("disk/out", "kept", "UsageError .* can't be written to .*/disk/out: .* bytes are free"),
        ("out", "disk/kept", ".*Error .*No space left on device"),
    ],
)
def test_a_full_disk_is_named_on_every_rank(folder: Path, out: str, ledger: str, told: str) -> None:
    Path("disk").mkdir()
    *errors, left = run_alone(FULL, out, ledger, folder=folder).splitlines()
    assert len(errors) == 2 and all(re.match(told, error) for error in errors), errors
    assert not left and not Path("out").exists()
