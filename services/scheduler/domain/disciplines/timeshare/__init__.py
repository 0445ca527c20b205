"""The ``timeshare`` discipline: its order of tasks, and the mathematics behind it.

- ``discipline.py``: passes tasks and pools to the rule; the only file here that reads rows.
- ``rule.py``: *rule*: order keys, slices, budgets, grants, load scale. Plain numbers in and out.
- ``history.py``, ``features.py``, ``gittins.py``: *predictor*: how long a task will still run.
- ``tempo.py``: *tempo*: the rule's times, scaled to how long the work of a pool takes.
"""
