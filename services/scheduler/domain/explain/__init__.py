"""Why a task waits, what would help, and when it starts, computed by ``decide`` on copies.

- ``explanation.py``: *explanation*: the answer to one question.
- ``group_simulation.py``: *group simulation*: one group played forward on a virtual clock.
- ``forecast.py``: *forecast*; ``remedies.py``: *remedy*; ``holders.py``: *holder* of needed nodes.
"""
