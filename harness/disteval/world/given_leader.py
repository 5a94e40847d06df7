"""The leader that the user names: ``DISTEVAL_LEADER`` and ``DISTEVAL_KEY_FILE``."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from disteval.errors import UsageError
from disteval.world.address import is_own, resolve

_KEY_CHARACTERS = 32


def has_given_leader() -> bool:
    """Return whether the user has named a leader."""
    return any(os.environ.get(name) for name in ("DISTEVAL_LEADER", "DISTEVAL_KEY_FILE"))


def given_leader(purpose: str, environ: Mapping[str, str] = os.environ) -> tuple[str, int, bytes]:
    """Return the address, the port and the key of the leader that the user has named.

    Args:
        purpose: What the leader leads. Each purpose has a key of its own, so that ranks do not
            take the leader of another job for theirs.
        environ: The user's variables.

    Raises:
        UsageError: A variable is missing or wrong, or others may read the key file.
    """
    leader, key_file = environ.get("DISTEVAL_LEADER", ""), environ.get("DISTEVAL_KEY_FILE", "")
    if not leader or not key_file:
        there, missing = ("DISTEVAL_LEADER", "DISTEVAL_KEY_FILE")[:: 1 if leader else -1]
        raise UsageError(
            f"{there} is set without {missing}; set both on every host, or neither: the leader "
            f"listens at host:port, and the file holds the key that all ranks must know"
        )
    host, _, port = leader.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(
            f"DISTEVAL_LEADER is {leader!r:.99}, and must be host:port of rank 0's host, such as "
            f"node1:29400"
        )
    key = hmac.digest(_read_key(Path(key_file)), purpose.encode(), "sha256")
    return resolve(host), int(port), key


def given_here(purpose: str) -> tuple[str, int, bytes]:
    """Return what `given_leader` does, in the process that is to listen there.

    Raises:
        UsageError: The leader is on another host.
    """
    host, port, key = given_leader(purpose)
    if not is_own(host):
        raise UsageError(
            f"DISTEVAL_LEADER={os.environ['DISTEVAL_LEADER']} names {host}, which is no address of "
            f"this host, where the leader runs; name one of this host"
        )
    return host, port, key


def given_address(purpose: str) -> str:
    """Return what `given_leader` does, as the leader itself would write it to its directory."""
    host, port, key = given_leader(purpose)
    return json.dumps({"key": key.hex(), "host": host, "port": port})


def _read_key(path: Path) -> bytes:
    """Return the key that is made of the text in a file of this user."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if found.st_uid != os.geteuid() or mode & 0o077:
                raise UsageError(
                    f"DISTEVAL_KEY_FILE={path} belongs to user {found.st_uid} with mode "
                    f"{mode:04o}, and must be a file of user {os.geteuid()} that nobody else can "
                    f"read; make it yours, with mode 0600"
                )
            text = file.read(1 << 16).strip()
    except OSError as error:
        raise UsageError(
            f"DISTEVAL_KEY_FILE={path} can't be read ({error.strerror}); name a file of mode 0600 "
            f"with the same random text on every host"
        ) from None
    if len(text) < _KEY_CHARACTERS:
        raise UsageError(
            f"DISTEVAL_KEY_FILE={path} holds {len(text)} characters, and a key has at least "
            f"{_KEY_CHARACTERS} random ones; write it with openssl rand -hex 32"
        )
    return hashlib.sha256(b"disteval world " + text).digest()
