"""The parts of a node's supervisor. Standard library only: they run under ``python -I -S``."""
