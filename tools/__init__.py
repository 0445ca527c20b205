"""Programs for developers of the project; the platform imports none of them."""
