"""The rows and the indexes over them: everything that ``decide`` reads, kept up to date by changes.

- ``index.py``: *index*, which follows every committed row; ``snapshot.py``: *snapshot*, its view at
  one time.
- ``pool.py``: *pool*: the waiting tasks, the runs and the accounts of one node group.
- ``timers.py``: *timer*: a time at which something about a task changes without an event.
- ``totals.py``: *totals*: what the nodes could hold if nothing ran.
"""
