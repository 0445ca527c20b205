# A base for machines without a registry of images: Debian with Python, from a file system that
# `make images-base` made with debootstrap. Everybody else names a public base: BASE=…
FROM scratch
ADD base.tar /
ENV LANG=C.UTF-8
CMD ["python3"]
