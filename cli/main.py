"""``phalanx``: the one command. Each subcommand is imported only when it is used."""

from __future__ import annotations

from importlib.metadata import version

from cyclopts import App

app = App(
    name="phalanx",
    help="All-or-nothing scheduling for Kubernetes Jobs on the upstream Workload / PodGroup API.",
    version=version("phalanx"),
)
app.command("cli.demo:demo", help="Show all-or-nothing scheduling on a throwaway control plane.")
app.command("cli.controllers:controllers", help="Run the controllers: Job -> Workload -> PodGroup, and protection.")
app.command("cli.scheduler:scheduler", help="Run the gang scheduler.")
app.command("cli.cluster:app", name="cluster", help="Throwaway Kubernetes clusters on this machine.")


def main() -> None:
    """Entry point of the ``phalanx`` script."""
    app()
