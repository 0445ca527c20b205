"""What time does to the order of the tasks of one level: time slices, and what they cost.

- ``order_keys.py``: *order key*, *slice end*, *load sample*.
- ``levels.py``: *level*, *demotion*: the level at which a run counts.
- ``slice_round.py``: *slice round*: a waiting task takes the nodes of later runs of its own level.
- ``budgets.py``: *preemption budget*: node-seconds that slice rounds may cost.
- ``starvation.py``: *starvation grant*: the task that is longest without service comes first.
"""
