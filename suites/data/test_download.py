"""A download of CIFAR-10 is complete or leaves nothing, never overwrites files, and says why."""

import hashlib
import io
import re
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from disteval import DataError
from disteval.data import download_cifar10, load_cifar10

from suites.helpers.data import BINARY_FOLDER, download

HEAD = b"HTTP/1.0 200 OK\r\n\r\n"


@contextmanager
def answering(*parts: bytes, more: int = 0) -> Iterator[str]:
    """Start a server that sends one client these bytes, and then repeats the last of them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                try:
                    for part in parts:
                        connection.sendall(part)
                    for _ in range(more):
                        connection.sendall(parts[-1])
                        time.sleep(0.01)
                except OSError:
                    return  # the client has had enough

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/archive"
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize(
    "answer",
    [
        b"no http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\ncut",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
def test_an_answer_that_breaks_http_says_what_to_do(tmp_path: Path, answer: bytes) -> None:
    advice = rf"1234.*{tmp_path}"
    with answering(answer) as url, pytest.raises(DataError, match=rf"(?s){advice}"):
        download.fetch_archive(url, "1234", tmp_path, "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://a b/", "http://127.0.0.1:x/", "http://a..b/"])
def test_an_address_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(DataError, match=re.escape(url)):
        download.fetch_archive(url, "1234", tmp_path, "folder")


def test_a_server_that_trickles_for_ever_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "_SECONDS_IN_ALL", 0.3)
    # It has 500 bytes for 5 seconds; less than 400 show that the time was watched as they came.
    early = r"\([1-3]?\d?\d bytes came in 0.3 seconds"
    with answering(HEAD, b"x", more=500) as url, pytest.raises(DataError, match=early):
        download.fetch_archive(url, "1234", tmp_path, "folder")
    assert list(tmp_path.iterdir()) == []


def test_an_archive_that_never_ends_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "MAX_ARCHIVE_BYTES", 1 << 20)
    with (
        answering(HEAD, bytes(1 << 16), more=500) as url,
        pytest.raises(DataError, match="1048576"),
    ):
        download.fetch_archive(url, "1234", tmp_path, "folder")
    assert list(tmp_path.iterdir()) == []


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo("folder/file")
            member.pax_headers, member.size = {"path": name}, len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def md5_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("folder/file")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.USTAR_FORMAT)


def gzip(data: bytes, then: bytes = b"") -> bytes:
    packer = zlib.compressobj(wbits=31)
    packed = packer.compress(data)
    return packed + (packer.flush(zlib.Z_FULL_FLUSH) + then if then else packer.flush())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip(tar({"folder/file": bytes(1 << 17)})[: 1 << 16], b"\xff" * 999), "unpacked"),
        (gzip(tar({"folder/file": bytes(1 << 17)}))[:100], "unpacked"),
        (b"noise", "archive"),
        (gzip(tar({"folder/a\0b": b"x"})), "can't be unpacked"),
        (gzip(header(tarfile.SYMTYPE, 0)), "neither a file"),
        (gzip(header(tarfile.LNKTYPE, 0)), "neither a file"),
        (gzip(header(tarfile.FIFOTYPE, 0)), "neither a file"),
    ],
)
def test_an_archive_that_is_wrong_inside_leaves_nothing(
    tmp_path: Path, data: bytes, message: str
) -> None:
    md5 = md5_of(data)
    with answering(HEAD, data) as url, pytest.raises(DataError, match=message):
        download.fetch_archive(url, md5, tmp_path, "folder")
    assert list(tmp_path.iterdir()) == []


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    data = gzip(tar({"folder/file": b"new"}))
    md5 = md5_of(data).upper()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("old")
    with answering(HEAD, data) as url, pytest.raises(DataError, match="folder"):
        download.fetch_archive(url, md5, tmp_path, "folder")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "mine"]
    with answering(HEAD, data) as url:
        download.fetch_archive(url, md5, tmp_path / "new", "folder")
    assert (tmp_path / "new" / "folder" / "file").read_bytes() == b"new"
    (tmp_path / "a file").write_text("x")
    with pytest.raises(DataError, match="folder"):
        download.fetch_archive("http://127.0.0.1:1/", md5, tmp_path / "a file", "folder")


RECORDS = bytes([3]) + bytes(3072)
WHOLE = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]


def test_cifar10_is_fetched_once_and_a_part_of_it_is_not_taken_for_the_whole(
    tmp_path: Path,
) -> None:
    data = gzip(tar({f"{BINARY_FOLDER}/{name}": RECORDS for name in WHOLE}))
    root = tmp_path / "new" / "data"
    (root / BINARY_FOLDER).mkdir(parents=True)  # as an earlier try may have left it
    with answering(HEAD, data) as url:
        assert download_cifar10(root, url=url, md5=md5_of(data)) == root
    assert load_cifar10(root).labels.tolist() == [3]
    assert load_cifar10(root, "train").name == "cifar10/train"
    assert [path.name for path in root.iterdir()] == [BINARY_FOLDER]
    # It is there now, so nothing is fetched, into that folder or its parent.
    for place in (root, root / BINARY_FOLDER):
        assert download_cifar10(place, url="http://127.0.0.1:1/") == place
    (root / BINARY_FOLDER / "data_batch_2.bin").unlink()
    with pytest.raises(DataError, match=r"data_batch_2.bin"):
        download_cifar10(root, url="http://127.0.0.1:1/")
    assert len(list((root / BINARY_FOLDER).iterdir())) == 5


@pytest.mark.parametrize(
    ("name", "md5", "found"),
    [
        (f"{BINARY_FOLDER}/test_batch.bin", "1234", r"\b[0-9a-f]{32}\b.*1234"),
        ("../escaped", None, "escaped"),
        ("{tmp}/escaped", None, "escaped"),
        ("other/file", None, BINARY_FOLDER),
    ],
)
def test_another_archive_is_refused_and_leaves_nothing(
    tmp_path: Path, name: str, md5: str | None, found: str
) -> None:
    data = gzip(tar({name.format(tmp=tmp_path): RECORDS}))
    with answering(HEAD, data) as url, pytest.raises(DataError, match=found):
        download_cifar10(tmp_path / "data", url=url, md5=md5 or md5_of(data))
    assert list(tmp_path.rglob("*")) == [tmp_path / "data"]


def test_an_answer_of_another_status_is_named(tmp_path: Path) -> None:
    answer = b"HTTP/1.0 404 Not Found\r\n\r\n"
    with answering(answer) as url, pytest.raises(DataError, match="404"):
        download_cifar10(tmp_path, url=url)
    assert list(tmp_path.iterdir()) == []
