"""The ``timeshare`` discipline: its order of tasks, and the mathematics behind it.

- ``discipline.py``: what tasks and pools tell the rule; the only file here that knows rows.
- ``rule.py``: *rule*: order keys, slices, budgets, grants, load scale. Plain numbers in and out.
- ``history.py``, ``features.py``, ``gittins.py``: *predictor*: how long a task will still run.
- ``tempo.py``: *tempo*: the rule's times, scaled to how long the work of a pool takes.
"""
