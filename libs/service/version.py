"""The release that this is; the packages, the charts and the images have the same number."""

VERSION = "0.1.0"
