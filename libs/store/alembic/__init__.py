"""Alembic's environment and template, shared by all services."""
