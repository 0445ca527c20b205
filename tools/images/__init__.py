"""Builds the container images of this repository; ``make images`` runs it (see ``__main__``)."""
