"""Free TCP ports on 127.0.0.1.

A port is chosen now and bound by a component a moment later, so another process may take it in between; two
measures keep that rare: ports are drawn at random (clusters started together seldom meet) and below the range
the kernel gives to outgoing connections. The rest is the caller's: a component that finds its port taken is
started again on new ones.
"""

from __future__ import annotations

import random
import socket

#: Below Linux' ip_local_port_range (32768-60999), above what services usually have.
FIRST, LAST = 20_000, 31_999


def is_free(port: int) -> bool:
    """Tell whether nobody has ``port`` of 127.0.0.1, or of all addresses, at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        # Without SO_REUSEADDR a port in TIME_WAIT counts as taken, though every Go server could bind it.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """Return ``count`` different free ports.

    :raises OSError: if so few ports are free that a thousand draws found none
    """
    found: list[int] = []
    for _ in range(1000 + count):
        if len(found) == count:
            return found
        port = random.randint(FIRST, LAST)
        if port not in found and is_free(port):
            found.append(port)
    raise OSError(f"no {count} free TCP ports between {FIRST} and {LAST} on 127.0.0.1")
