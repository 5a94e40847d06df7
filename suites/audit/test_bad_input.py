"""What can't be audited gets one clear paragraph and the exit status 2, never a verdict."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import Result

from suites.helpers.command import invoke
from suites.helpers.needs import needs
from suites.helpers.processes import run_plainly

MODULE = """
import os, sys, threading
from disteval import get_dist_backend

end = threading.Event()

def sound(case):
    own = range(case.rank, len(case.dataset), case.world_size)
    return {"count": sum(get_dist_backend().all_gather_object(len(own)))}

def takes_nothing(): pass
def returns_nothing(case): pass
def returns_text(case): return "0.9"
def returns_a_constant(case): return {"f1": 0.5}
def is_never_a_number(case): return {"f1": float("nan")}
def writes_no_part(case): return "part-0"
def takes_no_parts(case): return "part-0"
writes_no_part.merge = lambda case, paths: {"count": 0}
takes_no_parts.merge = lambda case: {"count": 0}
def logs_another_loss(case):
    case.logged("loss", 1.5)
    return {"loss": 2.5}
def raises(case): raise ValueError("no model")
def lacks_a_library(case): import no_such_library
def calls_sys_exit(case): sys.exit(3)
def calls_exit(case): exit()
def calls_os_exit(case): os._exit(0)
async def is_async(case): return sound(case)
def generates(case): yield sound(case)
def begins_a_group(case): raise ValueError("trying to initialize the default process group twice!")

class Async:
    async def __call__(self, case): return sound(case)

is_async_inside = Async()

class Evaluation:
    def __call__(self, case): return sound(case)

an_object = Evaluation()
a_lambda = lambda case: sound(case)

def hangs(case): end.wait(60)

def prints_a_lot(case):
    for _ in range(200): print("noise " * 20)
    return sound(case)

def forks(case):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return sound(case)
    return {"count": -1}

def forks_and_exits(case):
    for status in (0, 3):
        child = os.fork()
        if not child:
            sys.exit(status)
        assert os.waitpid(child, 0)[1] >> 8 == status
    return sound(case)
"""
NOT_JUDGED = {
    "takes_nothing": "mine:takes_nothing",
    "returns_nothing": "None",
    "returns_text": "str",
    "returns_a_constant": "f1",
    "is_never_a_number": "f1",
    "writes_no_part": "not the path of a file",
    "takes_no_parts": "def merge(case, paths)",
    "logs_another_loss": "logged as 1.5 and returned as 2.5",
    "raises": "ValueError: no model",
    "lacks_a_library": "no_such_library",
    "calls_sys_exit": "exit(3)",
    "calls_exit": "exit()",
    "calls_os_exit": "os._exit(0)",
    "is_async": "mine:is_async",
    "is_async_inside": "mine:is_async_inside",
    "generates": "mine:generates",
    "begins_a_group": "group twice",
    "no_such_function": "sound",
}
"""What each function that can't be judged is told of itself."""

MODULES = {
    "import no_such_library": "ModuleNotFoundError",
    "def evaluate(case) return": "SyntaxError",
    "import sys; sys.exit(4)": "exit(4)",
    "import os; os._exit(0)": "os._exit(0)",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module ``mine``, which is the working directory."""
    (tmp_path / "mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "bad"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def _audit(target: str, *options: str) -> Result:
    return invoke("audit", target, "--backend", "threads", *options)


@pytest.mark.parametrize("name", NOT_JUDGED)
def test_a_function_that_can_not_be_judged_is_told_why(folder: Path, name: str) -> None:
    found = _audit(f"mine:{name}", "--world-size", "1,2")
    assert (found.exit_code, NOT_JUDGED[name] in found.output) == (2, True), found.output
    assert "found:" not in found.output
    assert " is sound" not in found.output


@pytest.mark.parametrize("source", MODULES)
def test_a_module_that_can_not_be_imported_is_told_why(folder: Path, source: str) -> None:
    (folder / "bad.py").write_text(source)
    found = _audit("bad:evaluate")
    assert (found.exit_code, found.stdout) == (2, "")
    assert MODULES[source] in found.stderr
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["an_object", "a_lambda"])
def test_any_callable_is_audited(folder: Path, name: str) -> None:
    found = _audit(f"mine:{name}", "--world-size", "1,2")
    assert (found.exit_code, f"mine:{name}" in found.stdout) == (0, True), found.output


@pytest.mark.parametrize("after", ["prints_a_lot", "hangs"])
def test_what_the_function_prints_stays_out_of_the_report(folder: Path, after: str) -> None:
    case = ("--case", "N=3,B=1,W=2")
    try:
        assert _audit(f"mine:{after}", *case, "--timeout", "0.1").exit_code == (after == "hangs")
        found = _audit("mine:prints_a_lot", *case)
    finally:
        sys.modules["mine"].end.set()
    assert (found.exit_code, len(found.stdout.splitlines())) == (0, 2), found.stdout
    assert "noise" in found.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("name", ["forks", "forks_and_exits"])
def test_a_fork_that_comes_back_or_exits_is_no_rank(folder: Path, name: str) -> None:
    command = [sys.executable, "-m", "disteval.cli", "audit", f"mine:{name}"]
    case = ["--backend", "threads", "--case", "N=3,B=1,W=1"]
    found = run_plainly([*command, *case], folder, 60.0)
    assert (found.returncode, found.stdout.count("is sound")) == (0, 1), found.stdout + found.stderr


@needs("torch")
def test_an_array_without_data_is_not_judged(folder: Path) -> None:
    source = "import torch\ndef evaluate(case): return {'mean': torch.zeros((), device='meta')}"
    (folder / "bad.py").write_text(source)
    found = _audit("bad:evaluate", "--world-size", "1")
    assert (found.exit_code, "'mean'" in found.output and "Tensor" in found.output) == (2, True)
