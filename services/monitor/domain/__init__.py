"""What the monitor decides: pure."""
