"""``phalanx``: the one command. Each subcommand is imported only when it is used."""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App

app = App(
    name="phalanx",
    help="All-or-nothing scheduling for Kubernetes Jobs on the upstream Workload / PodGroup API.",
    version=version("phalanx"),
)
app.command("cli.controllers:controllers")
app.command("cli.scheduler:scheduler")
app.command("cli.cluster:app", name="cluster")
app.command("cli.demo:demo")


def main() -> None:
    """Entry point of the ``phalanx`` script."""
    app()
