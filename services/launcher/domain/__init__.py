"""What the launcher decides, as pure functions over values: no I/O, no clock, no randomness."""
