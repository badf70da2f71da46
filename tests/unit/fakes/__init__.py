"""Stand-ins that run in the test process."""
