"""Download of an archive; a failure leaves nothing behind."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import tempfile
import time
import urllib.request
import zlib
from pathlib import Path

from disteval.errors import DataError

MAX_ARCHIVE_BYTES = 1 << 30
_SECONDS_WITHOUT_DATA = 30
_SECONDS_IN_ALL = 3600
_CHUNK = 1 << 20


def fetch_archive(url: str, md5: str, root: Path, folder: str) -> None:
    """Download a ``.tar.gz`` archive and put the folder in it into ``root``.

    Args:
        url: The archive's address.
        md5: The checksum that the archive must have.
        root: The folder to put the archive's folder into; it is created.
        folder: The name of the folder that the archive must hold.

    Raises:
        DataError: The archive can't be downloaded, has another checksum, or holds a file that would
            be written outside of ``root``.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as name:
            unpacked = _fetch_aside(url, md5, Path(name), root)
            if not (unpacked / folder).is_dir():
                raise DataError(f"{url} does not hold the folder {folder}")
            (unpacked / folder).rename(root / folder)
    except OSError as error:
        raise DataError(f"{folder} can't be put into {root}: {error}") from error


def _fetch_aside(url: str, md5: str, aside: Path, root: Path) -> Path:
    """Download, check and unpack in the folder ``aside``; return the folder of unpacked files."""
    by_hand = (
        f"Fetch it by hand, check that its MD5 checksum is {md5}, unpack it into {root}, and give "
        f"--data {root}"
    )
    archive = aside / "archive.tar.gz"
    try:
        _download(url, archive)
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise DataError(f"{url} could not be fetched ({error}). {by_hand}") from error
    found = _md5(archive)
    if found != md5.lower():
        raise DataError(
            f"{url} has the MD5 checksum {found}, not {md5}; it was not unpacked. "
            f"Try again. Or: {by_hand[0].lower()}{by_hand[1:]}"
        )
    try:
        _unpack(archive, aside / "unpacked")
    except (tarfile.TarError, EOFError, OSError, ValueError, RecursionError, zlib.error) as error:
        raise DataError(f"{url} can't be unpacked as a .tar.gz archive: {error}") from error
    return aside / "unpacked"


def _download(url: str, target: Path) -> None:
    if not url.startswith(("https://", "http://")):
        raise DataError(f"{url} is not an address that begins with https:// or http://")
    end = time.monotonic() + _SECONDS_IN_ALL
    with (
        urllib.request.urlopen(url, timeout=_SECONDS_WITHOUT_DATA) as source,  # noqa: S310
        target.open("wb") as file,
    ):
        size = 0
        # read1 returns the bytes that have arrived; read would wait for a whole chunk.
        while chunk := source.read1(_CHUNK):
            size += len(chunk)
            if size > MAX_ARCHIVE_BYTES:
                raise DataError(f"{url} is larger than {MAX_ARCHIVE_BYTES} bytes")
            if time.monotonic() > end:
                raise TimeoutError(f"{size} bytes came in {_SECONDS_IN_ALL} seconds")
            file.write(chunk)


def _md5(path: Path) -> str:
    # The checksum that the archive's authors give: it detects damage, not malice.
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unpack(archive: Path, target: Path) -> None:
    """Write the archive's files; refuse an archive that reaches outside."""
    with tarfile.open(archive, mode="r:gz") as tar:
        for member in tar:
            if not (member.isdir() or member.isreg()) or member.issparse():
                raise ValueError(f"it holds {member.name}, which is neither a file nor a folder")
            path = target / member.name
            if not path.resolve().is_relative_to(target.resolve()):
                raise ValueError(f"it holds {member.name}, which lies outside of its folder")
            # tar.extract() has a filter for this, but not in Python 3.11.2, which Debian 12 has.
            if content := tar.extractfile(member):  # None for a folder
                path.parent.mkdir(parents=True, exist_ok=True)
                with content, path.open("wb") as file:
                    shutil.copyfileobj(content, file)
