"""The sources of ranks' output."""
