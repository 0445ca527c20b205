"""Backup and restore of one machine's platform."""
