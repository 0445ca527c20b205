"""The archives of kept output."""
