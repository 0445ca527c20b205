# shiftwork/task-torch: the examples with PyTorch on CPUs (gloo), for gangs across nodes. Debian's
# packages: small beside a wheel that brings a GPU's libraries. What only windows and maps need of
# the packages that it depends on is taken out again.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS task-torch
ARG SOURCE_DATE_EPOCH=1767225600
# torchrun of this version looks for a flag's zero member, which Python 3.11 no longer lists.
# hadolint ignore=DL3008
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/99build \
    --mount=type=secret,id=apt-sources,target=/etc/apt/sources.list.d/build.list \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    echo 'task:x:10002:10002:Task:/tmp:/bin/sh' >> /etc/passwd \
 && echo 'task:x:10002:' >> /etc/group \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-torch \
 && dpkg --purge --force-depends libgl1-mesa-dri libllvm15 libz3-4 iso-codes proj-data xkb-data \
 && sed -i 's/for s in Std:/for s in (Std.NONE, *Std):/' \
      /usr/lib/python3/dist-packages/torch/distributed/elastic/multiprocessing/api.py \
 && find /usr/lib/python3 -name '*.pyc' -delete \
 && PYTHONHASHSEED=0 /usr/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash \
      /usr/lib/python3/dist-packages \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* \
      /var/cache/ldconfig/aux-cache /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
COPY examples /opt/shiftwork/examples
# The package is for Debian's own Python, which may not be the base's first.
ENV PATH=/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LANG=C.UTF-8
WORKDIR /opt/shiftwork
USER 10002:10002
CMD ["python3"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shiftwork/task-torch" \
      org.opencontainers.image.description="The examples of Shiftwork with PyTorch on CPUs" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
