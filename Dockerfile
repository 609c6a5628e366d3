# The image of every process of Turnfold, including the NATS server. compose.yaml runs them together.
# The tag receives security fixes. For reproducible builds, pass a digest: --build-arg PYTHON=python@sha256:…
ARG PYTHON=python:3.13-slim-trixie

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/setup.lock requirements/server.lock requirements/
RUN pip install --no-deps --only-binary :all: --require-hashes -r requirements/setup.lock
# Compiled at build time: a read-only container would compile its imports at each start, for seconds.
RUN python -m venv --without-pip /opt/turnfold \
    && uv pip install --python /opt/turnfold/bin/python --no-deps --require-hashes --compile-bytecode -r requirements/server.lock
COPY pyproject.toml README.md LICENSE ./
COPY shared/ shared/
COPY services/ services/
COPY migrations/ migrations/
COPY examples/ examples/
RUN python -m hatchling build -t wheel -d wheel \
    && uv pip install --python /opt/turnfold/bin/python --no-deps --compile-bytecode wheel/*.whl
RUN mkdir /data

FROM ${PYTHON}
COPY --from=build /opt/turnfold /opt/turnfold
# A new volume gets its owner from this directory.
COPY --from=build --chown=10001:10001 /data /data
ENV PATH=/opt/turnfold/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001:10001
# For a query server. The check bypasses the HTTP proxies that Docker passes on from its configuration.
HEALTHCHECK --interval=5s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8080/readyz')"]
ENTRYPOINT ["turnfold"]
CMD ["--help"]
