"""``python -m cli`` is ``phalanx``."""

from __future__ import annotations

from cli.main import main

main()
