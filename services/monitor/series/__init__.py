"""Series of what was measured: recorded from samples, stored as blocks, and read."""
