"""Measurements with their floors in the same run. Not tests: a slow machine breaks nothing."""
