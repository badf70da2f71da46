"""Mutation tests: each test suite against small faults planted in the code it tests."""
