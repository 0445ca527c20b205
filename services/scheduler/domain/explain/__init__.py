"""Why a task waits, what would help, and when it starts, computed by ``decide`` on copies.

- ``explanation.py``: *explanation*: the answer to one query.
- ``group_simulation.py``: *group simulation*: one group simulated forward on a virtual clock.
- ``forecast.py``: *forecast*; ``remedies.py``: *remedy*; ``holders.py``: *holder* of needed nodes.
- ``queue_page.py``: a page of the queue, read from what the index keeps.
"""
