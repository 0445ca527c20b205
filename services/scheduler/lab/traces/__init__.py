"""Traces of any kind, read into one workload: ``load.load`` is the way in."""
