"""The services. None imports another; ``allinone`` alone may import them all."""
