# shiftwork/postgres: PostgreSQL from Debian's packages, for trials, tests and machines without a
# registry. It takes the same variables as the public image (docker/postgres-entrypoint.sh).
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS postgres
ARG SOURCE_DATE_EPOCH=1767225600
ENV SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH}
# The user first, with a number that manifests can name. The JIT compiler and its 120 MB of LLVM are
# left out: the platform's queries are short.
# hadolint ignore=DL3008
RUN --mount=type=secret,id=apt,target=/etc/apt/apt.conf.d/99build \
    --mount=type=secret,id=apt-sources,target=/etc/apt/sources.list.d/build.list \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    echo 'postgres:x:999:999:PostgreSQL:/var/lib/postgresql:/bin/sh' >> /etc/passwd \
 && echo 'postgres:x:999:' >> /etc/group \
 && mkdir -p /etc/postgresql-common \
 && echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.conf \
 && apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends postgresql-15 \
 && dpkg --purge --force-depends libllvm14 libz3-4 \
 && rm -rf /usr/lib/postgresql/15/lib/llvmjit* /usr/lib/postgresql/15/lib/bitcode \
      /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/* \
      /var/cache/ldconfig/aux-cache /etc/ssl/private/ssl-cert-snakeoil.key \
      /etc/ssl/certs/ssl-cert-snakeoil.pem /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow- \
 && mkdir -p /docker-entrypoint-initdb.d /var/lib/postgresql/data /var/run/postgresql \
 && chown -R 999:999 /var/lib/postgresql /var/run/postgresql \
 && chmod 0700 /var/lib/postgresql/data && chmod 3777 /var/run/postgresql
COPY --chmod=0755 docker/postgres-entrypoint.sh /usr/local/bin/postgres-entrypoint
ENV PATH=/usr/lib/postgresql/15/bin:/usr/local/bin:/usr/bin:/bin \
    PGDATA=/var/lib/postgresql/data \
    LANG=C.UTF-8
WORKDIR /var/lib/postgresql
USER 999:999
EXPOSE 5432
VOLUME ["/var/lib/postgresql/data"]
# A fast shutdown: SIGTERM would wait until the last client has left.
STOPSIGNAL SIGINT
ENTRYPOINT ["postgres-entrypoint"]
CMD ["postgres"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shiftwork/postgres" \
      org.opencontainers.image.description="PostgreSQL, for trials and tests of Shiftwork" \
      org.opencontainers.image.licenses="PostgreSQL" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
