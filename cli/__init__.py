"""The command line: presentation only, never business logic."""
