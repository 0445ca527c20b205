"""Finds abnormal tasks by rules, and acts on them as the site has configured it."""
