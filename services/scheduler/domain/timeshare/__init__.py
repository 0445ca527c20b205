"""The mathematics of the ``timeshare`` discipline: plain numbers in, plain numbers out.

``history.py`` predicts how long a task will still run, ``rule.py`` turns that into the order of a
pool. Times are float seconds here; ``domain/disciplines/timeshare.py`` knows tasks and rows.
"""
