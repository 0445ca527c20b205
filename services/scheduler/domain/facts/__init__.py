"""The rows and the indexes over them: everything that ``decide`` reads, kept up to date by changes.

- ``index.py``: *index*, which follows every committed row; ``snapshot.py``: *snapshot*, its view at
  one moment.
- ``pool.py``: *pool*: the waiting tasks, the runs and the accounts of one node group.
- ``timers.py``: *timer*: every moment at which time alone changes something.
- ``totals.py``: *totals*: what the nodes could hold if nothing ran.
"""
