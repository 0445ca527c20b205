"""The lab's report: one HTML file with its pictures in it, no script, nothing loaded from outside.

``curves.py`` reduces a run to what is drawn, ``plot.py`` draws, ``page.py`` puts the page together.
"""
