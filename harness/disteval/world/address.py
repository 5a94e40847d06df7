"""The addresses of this host, and the one on which a leader listens for ranks of others."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from collections.abc import Mapping
from contextlib import suppress

from disteval.errors import UsageError
from disteval.host import interfaces

_HINTS = ("MASTER_ADDR", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST")
"""Variables in which launchers name a host of the job, or the host that started it."""

LOOPBACK = "127.0.0.1"

_CHOOSE = "choose one with --interface NAME or ADDRESS, or with DISTEVAL_LEADER"


def own_address(interface: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the IPv4 address on which this process can be reached from the other hosts of its job.

    Args:
        interface: The name of a network interface, or an address of this host. None stands for
            the address by which this host reaches what its launcher names, or for its only one.
        environ: The variables of the launcher.

    Raises:
        UsageError: The interface is not one of this host's; or no address, or more than one, is
            left to choose from.
    """
    if interface is not None:
        return _chosen(interface)
    for host in [environ[name] for name in _HINTS if environ.get(name)] + [platform.node()]:
        found = _towards(host)
        if found and not _is_loopback(found):
            return found
    addresses = {name: own for name, own in interfaces() if not _is_loopback(own)}
    if len(set(addresses.values())) == 1:
        return next(iter(addresses.values()))
    found = (
        ", ".join(f"{name} {address}" for name, address in addresses.items()) or "none was found"
    )
    raise UsageError(
        f"this host has more or fewer than one IPv4 address ({found}), and the launcher does not "
        f"say which of them the other hosts can reach; {_CHOOSE}"
    )


def resolve(host: str) -> str:
    """Return the IPv4 address of a host by its name or address.

    Raises:
        UsageError: It has none.
    """
    if ":" in host:
        raise UsageError(
            f"{host!r} is an IPv6 address, and a leader listens at an IPv4 address; give that of "
            f"the same host, or a name that has one"
        )
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"{host!r} has no IPv4 address here ({error}); give the host's address as a number"
        ) from None


def is_own(address: str) -> bool:
    """Return whether an IPv4 address is one of this host's, and not that of all its interfaces."""
    if ipaddress.ip_address(address).is_unspecified:
        return False
    with socket.socket() as probe, suppress(OSError):
        probe.bind((address, 0))
        return True
    return False


def _chosen(interface: str) -> str:
    addresses = dict(interfaces())
    if interface in addresses:
        return addresses[interface]
    with suppress(UsageError):  # a host's name is good, too
        address = resolve(interface)
        if is_own(address):
            return address
    known = ", ".join(f"{name} ({address})" for name, address in addresses.items())
    raise UsageError(
        f"--interface {interface!r} is neither an interface with an IPv4 address nor such an "
        f"address of this host, {platform.node()}, where rank 0 runs; it has: {known}"
    )


def _towards(host: str) -> str:
    """Return the address of this host from which packets to another host leave, or nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError, UsageError):
        probe.connect((resolve(host), 1))  # sends nothing
        return str(probe.getsockname()[0])
    return ""


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback
