"""A download of CIFAR-10 is complete or leaves nothing, and never overwrites files."""

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disteval import DataError
from disteval.data import download_cifar10, load_cifar10

from suites.helpers.data import BINARY_FOLDER


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Start a real HTTP server of a folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}", folder
        serving.shutdown()
        thread.join()


def archive(folder: Path, members: dict[str, bytes]) -> str:
    """Write archive.tar.gz, and return its MD5."""
    path = folder / "archive.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


RECORDS = bytes([3]) + bytes(3072)


WHOLE = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def test_download_unpack_and_read(server: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = server
    md5 = archive(folder, {f"{BINARY_FOLDER}/{name}": RECORDS for name in WHOLE})
    root = tmp_path / "new" / "data"
    (root / BINARY_FOLDER).mkdir(parents=True)  # as an earlier try may have left it
    assert download_cifar10(root, url=f"{url}/archive.tar.gz", md5=md5) == root
    assert load_cifar10(root).labels.tolist() == [3]
    assert load_cifar10(root, "train").name == "cifar10/train"
    assert [path.name for path in root.iterdir()] == [BINARY_FOLDER]
    # It is there now, so nothing is fetched, into that folder or its parent.
    assert download_cifar10(root, url=f"{url}/gone.tar.gz") == root
    assert download_cifar10(root / BINARY_FOLDER, url=f"{url}/gone.tar.gz") == root / BINARY_FOLDER
    # A part of it is not taken for the whole.
    (root / BINARY_FOLDER / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin"):
        download_cifar10(root, url=f"{url}/archive.tar.gz", md5=md5)
    assert len(list((root / BINARY_FOLDER).iterdir())) == 5


def test_a_download_with_another_checksum_is_refused(
    server: tuple[str, Path], tmp_path: Path
) -> None:
    url, folder = server
    md5 = archive(folder, {f"{BINARY_FOLDER}/test_batch.bin": RECORDS})
    with pytest.raises(DataError, match=rf"{md5}.*1234"):
        download_cifar10(tmp_path / "data", url=f"{url}/archive.tar.gz", md5="1234")
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("name", ["../escaped", "{tmp}/escaped"])
def test_an_archive_that_reaches_outside_is_refused(
    server: tuple[str, Path], tmp_path: Path, name: str
) -> None:
    url, folder = server
    members = {f"{BINARY_FOLDER}/test_batch.bin": RECORDS, name.format(tmp=tmp_path): b"x"}
    md5 = archive(folder, members)
    with pytest.raises(DataError, match=Path(name).name):
        download_cifar10(tmp_path / "data", url=f"{url}/archive.tar.gz", md5=md5)
    assert list((tmp_path / "data").iterdir()) == []
    assert not list(tmp_path.rglob("escaped"))


def test_downloads_that_fail_say_what_to_do(server: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = server
    with pytest.raises(DataError, match="404"):
        download_cifar10(tmp_path / "data", url=f"{url}/gone.tar.gz")
    md5 = archive(folder, {"other/file": b"x"})
    with pytest.raises(DataError, match=BINARY_FOLDER):
        download_cifar10(tmp_path / "data", url=f"{url}/archive.tar.gz", md5=md5)
    assert list((tmp_path / "data").iterdir()) == []
