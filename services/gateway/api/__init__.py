"""The routes: thin functions from requests to commands and projections."""
