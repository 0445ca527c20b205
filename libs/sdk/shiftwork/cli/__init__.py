"""The command line ``shiftwork``: the extra ``cli`` of the SDK (Typer and rich).

``main`` holds the application and runs it, ``session`` the options that every command takes,
``client`` speaks HTTP, ``render`` is the only module that prints; the other modules are one noun
each. Commands that need the platform itself join through the entry-point group
``shiftwork.commands``.
"""
