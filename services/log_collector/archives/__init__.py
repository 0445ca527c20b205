"""Where kept output lies."""
