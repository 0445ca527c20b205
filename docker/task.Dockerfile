# shiftwork/task: an ordinary image of a user's, as the examples need it. Nothing of the platform is
# in it: the SDK comes by an init container, the run's context by a mounted file.
#
#   podman build -f docker/task.Dockerfile -t shiftwork/task .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS packages
RUN ["python3", "-m", "venv", "/opt/pip"]
COPY requirements/examples.txt /src/requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    python3 -m venv --without-pip /opt/venv \
 && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-compile \
      --only-binary=:all: --require-hashes --requirement /src/requirements/examples.txt \
 && PYTHONHASHSEED=0 python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE} AS task
RUN echo 'task:x:10002:10002:Task:/tmp:/bin/sh' >> /etc/passwd \
 && echo 'task:x:10002:' >> /etc/group
COPY --from=packages /opt/venv /opt/venv
COPY examples /opt/shiftwork/examples
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LANG=C.UTF-8
# So that `python examples/digits.py` is the same here as in the tree.
WORKDIR /opt/shiftwork
USER 10002:10002
CMD ["python"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shiftwork/task" \
      org.opencontainers.image.description="The examples of Shiftwork and what they need" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
