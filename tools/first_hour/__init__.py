"""``make first-hour``: README and the guide, followed word by word as a new user would.

``documents`` reads the steps out of Markdown, ``terminal`` runs them, ``walk`` has the table of
what is typed otherwise than it is written, and ``__main__`` the fresh clone and home around it.
"""
