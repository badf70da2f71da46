"""Memory of a long-running process: the garbage collector against large, still caches, and TLS connections.

With twenty thousand pods in memory, CPython's default thresholds walk all of them for nothing several times a second,
and walking all stops the event loop. The hot kinds are structs and tuples that the collector does not follow
(:mod:`api.wire`); what was imported it never looks at again, and at the rest less often.
"""

from __future__ import annotations

import gc
from asyncio import sslproto

#: A young collection for so many more containers than were freed; then in how many of those an older one. A young one
#: walks that many and takes a millisecond; if it came later, cycles (failed requests with their tracebacks, mostly)
#: would pile up to megabytes before anybody looks. An older one sooner, and the first list of a large cluster would be
#: walked again and again.
THRESHOLDS = (5_000, 100, 10)

#: Bytes. asyncio gives each TLS connection a buffer of 256 KiB for its whole life, of which an API server's records of
#: 16 KiB never fill much; the pool has dozens of them.
TLS_BUFFER = 64 * 1024


def tune_tls() -> None:
    """Give new TLS connections smaller buffers; at the start of a long-running process."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER


def tune_gc() -> None:
    """Set aside what was imported, and raise the thresholds; at the start of a long-running process."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
