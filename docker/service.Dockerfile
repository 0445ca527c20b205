# shiftwork/platform: every service of the platform in one image; the argument chooses the module.
#
#   podman build -f docker/service.Dockerfile -t shiftwork/platform .
#   podman run --rm --read-only --tmpfs /tmp shiftwork/platform services.submit
#
# The secrets are optional and only seen by the build: pip's settings and certificates, where a
# machine has its own. With one SOURCE_DATE_EPOCH two builds give the same layers.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS tools
RUN ["python3", "-m", "venv", "/opt/pip"]

# What others wrote: changes with requirements/services.txt only.
FROM tools AS packages
COPY requirements/services.txt /src/requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    python3 -m venv --without-pip /opt/shiftwork/venv \
 && /opt/pip/bin/pip --python /opt/shiftwork/venv/bin/python install --no-cache-dir --no-compile \
      --only-binary=:all: --require-hashes --requirement /src/requirements/services.txt
# Sources of compiled modules, stubs and other people's tests are of no use at run time. The SDK is
# found by every program of this Python: the process runtime starts tasks with nothing else.
RUN find /opt/shiftwork/venv -type f \( -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi' -o -name '*.c' \
      -o -name '*.h' -o -name '*.cpp' -o -name '*.pyi' \) -delete \
 && find /opt/shiftwork/venv -depth -type d \( -name tests -o -name test -o -name testing \
      -path '*/sqlalchemy/testing' \) -exec rm -r {} + \
 && echo /opt/shiftwork/sdk > "$(/opt/shiftwork/venv/bin/python -c \
      'import sysconfig; print(sysconfig.get_path("purelib"))')/shiftwork.pth" \
 && PYTHONHASHSEED=0 python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash \
      /opt/shiftwork/venv/lib

# The SDK as a wheel and as a folder for PYTHONPATH.
FROM tools AS sdk
ARG SOURCE_DATE_EPOCH=1767225600
COPY requirements/build.txt /src/requirements/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/run/secrets/certificates \
    /opt/pip/bin/pip install --no-cache-dir --only-binary=:all: --require-hashes \
      --requirement /src/requirements/build.txt
COPY libs/sdk /src/sdk
RUN SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH} /opt/pip/bin/pip wheel --no-deps --no-build-isolation \
      --no-index --wheel-dir /opt/shiftwork/sdk /src/sdk \
 && python3 -m zipfile -e /opt/shiftwork/sdk/shiftwork-*.whl /opt/shiftwork/sdk

# Our own code, compiled: a read-only file system cannot be compiled to later.
FROM tools AS code
COPY libs /opt/shiftwork/app/libs
COPY services /opt/shiftwork/app/services
COPY docker/shiftwork docker/healthcheck /opt/shiftwork/bin/
RUN rm -r /opt/shiftwork/app/libs/sdk \
 && chmod -R u=rwX,go=rX /opt/shiftwork && chmod 0755 /opt/shiftwork/bin/* \
 && PYTHONHASHSEED=0 python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash \
      /opt/shiftwork/app

FROM ${BASE} AS platform
# The standard library too, where the base comes without its compiled modules.
RUN stdlib="$(PYTHONDONTWRITEBYTECODE=1 python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
 && { test -e "$stdlib/__pycache__" || PYTHONHASHSEED=0 python3 -m compileall -q -j 1 \
      --invalidation-mode unchecked-hash -x '/(test|tests|site-packages|dist-packages)/' "$stdlib"; } \
 && echo 'shiftwork:x:10001:10001:Shiftwork:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'shiftwork:x:10001:' >> /etc/group \
 && mkdir -p /opt/shiftwork /var/lib/shiftwork/work \
 && chown 10001:10001 /var/lib/shiftwork && chmod 1777 /var/lib/shiftwork/work
COPY --from=packages /opt/shiftwork/venv /opt/shiftwork/venv
COPY --from=sdk /opt/shiftwork/sdk /opt/shiftwork/sdk
COPY --from=code /opt/shiftwork/bin /opt/shiftwork/bin
COPY --from=code /opt/shiftwork/app /opt/shiftwork/app
ENV PATH=/opt/shiftwork/bin:/opt/shiftwork/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/shiftwork/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LANG=C.UTF-8
WORKDIR /opt/shiftwork/app
USER 10001:10001
ENTRYPOINT ["python", "-m"]
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="shiftwork/platform" \
      org.opencontainers.image.description="Every service of Shiftwork; the first argument names the module" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
