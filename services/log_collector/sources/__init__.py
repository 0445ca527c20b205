"""Where ranks' output comes from."""
