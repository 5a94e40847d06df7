"""A report says which distribution provides a backend's class, and in which version."""

import importlib
import json
from pathlib import Path

import pytest

pytest.importorskip("hypothesis", reason="hypothesis is not installed")

from disteval.conformance.check import check_backend, select_rules
from disteval_backends.threads_dist import ThreadsDist

MODULE = (
    "from disteval_backends.threads_dist import ThreadsDist\n\nclass Mine(ThreadsDist):\n    pass\n"
)


def distribution(site: Path, record: list[str], **files: str) -> None:
    """Write what pip keeps of an installed distribution."""
    info = site / "their_pkg-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-pkg\nVersion: 1.2\n")
    (info / "RECORD").write_text("".join(f"{name},sha256=x,1\n" for name in record))
    for name, text in files.items():
        (info / name.replace("_json", ".json").replace("_txt", ".txt")).write_text(text)


def module(folder: Path, name: str) -> type:
    """Write a package with a backend, and import its class."""
    package = folder / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MODULE)
    found: type = importlib.import_module(name).Mine
    return found


def provider_of(cls: type) -> tuple[str, str]:
    """Return the distribution of a backend's class and its version, as a report has them."""
    report = check_backend(cls, (1,), rules=select_rules(["1.1"]), examples=1).to_json()
    return report["target_distribution"], report["target_version"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the import path, before all others."""
    folder = tmp_path / "a folder"  # a URL has another name for it
    monkeypatch.syspath_prepend(folder / "source")
    monkeypatch.syspath_prepend(folder / "site")
    return folder / "site"


def test_an_installed_distribution_provides_its_files(site: Path) -> None:
    distribution(site, ["their_a/__init__.py"])
    assert provider_of(module(site, "their_a")) == ("their-pkg", "1.2")


def test_a_class_that_no_distribution_installed_has_no_version(site: Path) -> None:
    # One of the same name is installed, and another folder hides it.
    distribution(site, ["their_b/__init__.py"])
    assert provider_of(module(site.parent / "source", "their_b")) == ("", "")
    assert provider_of(type("Made", (ThreadsDist,), {"__module__": "nowhere"})) == ("", "")


@pytest.mark.parametrize("link", ["pth", "finder"])
def test_an_editable_distribution_provides_the_folder_that_it_links_to(
    site: Path, link: str
) -> None:
    source = site.parent / "source"
    where = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    name, tests = f"their_{link}", f"tests_of_{link}"
    if link == "pth":
        distribution(site, ["_their.pth"], direct_url_json=where)
        (site / "_their.pth").write_text(f"{source / 'src'}\n")
    else:
        distribution(site, ["finder.py"], direct_url_json=where, top_level_txt=f"{name}\n")
    folder = source / "src" if link == "pth" else source
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        assert provider_of(module(folder, name)) == ("their-pkg", "1.2")
    assert provider_of(module(source, tests)) == ("", "")
