"""The registry finds backends by name, and explains unknown, missing and broken ones."""

import re
import subprocess
import sys
from pathlib import Path

import disteval
import pytest
from disteval import BackendUnavailableError, UnknownBackendError, UsageError
from disteval.errors import HarnessError
from disteval.registry import get_backend_class, load_backend_class
from disteval_backends.non_dist import NonDist

from suites.helpers.faults import add_class
from suites.helpers.processes import run_plainly


def _run(code: str, folder: Path = Path()) -> subprocess.CompletedProcess[str]:
    """Run a program that finds what is installed in a folder."""
    return run_plainly([sys.executable, "-c", code], folder, 60)


def _distribution(folder: Path, entries: str, **modules: str) -> Path:
    """Install a distribution of a third party in a folder of its own."""
    info = folder / "third_party-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[disteval.backends]\n{entries}\n")
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    return folder


def test_the_name_of_a_module_gets_the_form_with_its_class() -> None:
    for name in ("colorsys", "my.mod"):
        with pytest.raises(UnknownBackendError, match=f"'{name}:Class'"):
            disteval.get_dist_backend(name)


@pytest.mark.parametrize("name", ["mine:", ":Mine", "mine:a b", "mine:\x1b[2J", "a:b:c"])
def test_what_can_be_no_class_is_refused_before_it_is_imported(name: str) -> None:
    with pytest.raises(UsageError, match="module:Class"):
        get_backend_class(name)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import sys; sys.exit('no license')", "SystemExit"),
        ("Capabilities(bounded_waits='no timeouts')", "bounded_waits"),
        ("Capabilities(grace='3')", "grace"),
        ("class Mine(NonDist): capabilities = {'bounded_waits': False}", "dict"),
        ("class Mine(NonDist): preload = 'numpy'", "('numpy',)"),
    ],
)
def test_a_module_that_gives_no_usable_class_says_why(
    code: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = "from disteval import Capabilities\nfrom disteval_backends.non_dist import NonDist\n"
    (tmp_path / "unusable.py").write_text(imports + code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unusable", raising=False)
    with pytest.raises(HarnessError, match=re.escape(found)):
        get_backend_class("unusable:Mine")


def test_names_come_in_a_stable_order() -> None:
    names = disteval.list_all_backends()
    assert names[:5] == ["non_dist", "mpi4py", "tf_horovod", "torch_cpu", "torch_cuda"]
    assert names == disteval.list_all_backends()


def test_an_unknown_name_suggests_the_nearest_and_lists_the_known() -> None:
    with pytest.raises(UnknownBackendError, match="'torch_cup'") as caught:
        disteval.get_dist_backend("torch_cup")
    assert all(name in str(caught.value) for name in disteval.list_all_backends())
    with pytest.raises(UnknownBackendError, match="'qqq'"):
        disteval.set_default_dist_backend("qqq")


def test_the_same_name_is_the_same_instance() -> None:
    assert disteval.get_dist_backend("non_dist") is disteval.get_dist_backend("non_dist")


def test_the_default_is_non_dist_until_it_is_set() -> None:
    done = _run(
        "import disteval\n"
        "assert type(disteval.get_dist_backend()).__name__ == 'NonDist'\n"
        "from disteval_backends.non_dist import NonDist\n"
        "class Mine(NonDist): pass\n"
        "disteval.register_backend('mine', Mine)\n"
        "disteval.set_default_dist_backend('mine')\n"
        "assert type(disteval.get_dist_backend()) is Mine\n"
        "assert disteval.list_all_backends()[-1] == 'mine'\n"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "library", "extra"), [("torch_cpu", "torch", "torch"), ("mpi4py", "mpi4py", "mpi")]
)
def test_a_missing_library_names_the_extra(name: str, library: str, extra: str) -> None:
    # None in sys.modules is how Python itself marks a module as not to be found.
    done = _run(
        f"import sys; sys.modules[{library!r}] = None\n"
        f"import disteval\n"
        f"try:\n    disteval.get_dist_backend({name!r})\n"
        f"except disteval.BackendUnavailableError as error:\n    print(error)\n"
    )
    assert f"the package {library!r} is not installed" in done.stdout, done.stderr
    assert f"pip install '.[{extra}]'" in done.stdout


def test_a_third_party_is_found_and_a_broken_one_is_in_nobodys_way(tmp_path: Path) -> None:
    folder = _distribution(
        tmp_path,
        "theirs = their_backend:Theirs\nbroken = broken_backend:Broken\nwrong = their_backend:os",
        their_backend="import os\nfrom disteval_backends.non_dist import NonDist as Theirs",
        broken_backend="raise OSError('a broken installation')",
    )
    done = _run(
        "import disteval\n"
        "print(disteval.list_all_backends())\n"
        "print(type(disteval.get_dist_backend('theirs')).__name__)\n"
        "for name in ('broken', 'wrong'):\n"
        "    try: disteval.get_dist_backend(name)\n"
        "    except disteval.HarnessError as error: print(error)\n"
        "print(type(disteval.get_dist_backend('non_dist')).__name__)\n",
        folder,
    )
    assert done.returncode == 0, done.stderr
    names, theirs, broken, wrong, ours = done.stdout.splitlines()
    assert "'theirs'" in names
    assert "'broken'" in names
    assert theirs == "NonDist"
    assert ("OSError" in broken, "BaseDistBackend" in wrong) == (True, True)
    assert ours == "NonDist"


def test_a_third_party_cannot_take_the_name_of_a_backend_of_ours(tmp_path: Path) -> None:
    folder = _distribution(
        tmp_path,
        "non_dist = impostor:Impostor",
        impostor="from disteval_backends.non_dist import NonDist\nclass Impostor(NonDist): ...",
    )
    done = _run("import disteval; print(type(disteval.get_dist_backend('non_dist')))", folder)
    assert f"{NonDist.__module__}.NonDist" in done.stdout, done.stderr


def test_register_backend_refuses_what_can_be_no_backend() -> None:
    with pytest.raises(UsageError, match="'non_dist'"):
        disteval.register_backend("non_dist", NonDist)
    with pytest.raises(UsageError, match="BaseDistBackend"):
        disteval.register_backend("number", int)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="''"):
        disteval.register_backend("", NonDist)


def test_a_library_that_is_broken_is_reported_where_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Theirs(NonDist):
        preload = ("math", "no_such_library.core")

    assert get_backend_class(Theirs) is Theirs
    with pytest.raises(BackendUnavailableError, match=r"'Theirs' .*no_such"):
        load_backend_class(Theirs)
    add_class(monkeypatch, "theirs", Theirs)
    with pytest.raises(BackendUnavailableError, match=r"'theirs' .*no_such"):
        disteval.get_dist_backend("theirs")
