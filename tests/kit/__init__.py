"""The test kit: servers, harnesses, and checkers of recorded histories."""
