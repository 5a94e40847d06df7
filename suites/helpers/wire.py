"""A cable between two hosts of tests, which delays Ethernet frames and loses some or all of them.

Linux does this with ``netem``, a module that many kernels lack. This program makes a virtual
interface in each of two network namespaces, and carries what is sent on one to the other. It ends
when its standard input does; each line there is a new delay in seconds and a share of lost frames.

    python wire.py /proc/123/ns/net /proc/456/ns/net
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque

INTERFACE = "wire0"

_NEW_NETWORK = 0x40000000
_TUNSETIFF = 0x400454CA
_TAP_WITHOUT_HEADER = 0x1002
_MOST_BYTES = 1 << 16
_SEED = 19


def end_in(namespace: str) -> int:
    """Make the interface in a network namespace; what is sent there can be read here."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(namespace) as entered:
        if libc.setns(entered.fileno(), _NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"{namespace} can't be entered")
    # Whoever opens the file gets an interface of the namespace that it is in.
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH22x", INTERFACE.encode(), _TAP_WITHOUT_HEADER))
    return end


def carry(one: int, other: int) -> None:
    """Carry frames between both ends until standard input ends."""
    chance = random.Random(_SEED)
    delay, loss = 0.0, 0.0
    # The frames on their way, with the times at which they arrive, which a shorter delay may not
    # bring out of order.
    under_way: deque[tuple[float, int, bytes]] = deque()
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for ready in select.select([0, one, other], [], [], wait)[0]:
            if ready == 0:
                line = os.read(0, 4096).decode()
                if not line:
                    return
                delay, loss = map(float, line.split())
                print("ready", flush=True)
                continue
            frame = os.read(ready, _MOST_BYTES)
            if chance.random() >= loss:
                to = other if ready == one else one
                under_way.append((time.monotonic() + delay, to, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, to, frame = under_way.popleft()
            try:
                os.write(to, frame)
            except OSError:  # the interface is down, or its queue is full
                continue


def main() -> None:
    """Make both ends of the cable, and carry frames between them."""
    ends = [end_in(namespace) for namespace in sys.argv[1:]]
    print("ready", flush=True)
    carry(*ends)


if __name__ == "__main__":
    main()
