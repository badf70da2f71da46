"""The gang scheduler: a pure core (``scheduler.core``) and a thin shell that feeds it and carries out decisions."""
