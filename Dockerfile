# The image of every process of Turnfold, the NATS server included; compose.yaml says how they run together.
# A tag moves with its security fixes; who wants the same bytes each time names a digest: --build-arg PYTHON=python@sha256:…
ARG PYTHON=python:3.13-slim-trixie

FROM ${PYTHON} AS build
WORKDIR /src
COPY requirements/setup.lock requirements/server.lock requirements/
RUN pip install --no-deps --only-binary :all: --require-hashes -r requirements/setup.lock
# Compiled now, once: a container that may not write would compile all it imports at each start, for seconds.
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
# A new volume takes its owner from here.
COPY --from=build --chown=10001:10001 /data /data
ENV PATH=/opt/turnfold/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /data
USER 10001:10001
# That of a query server. Docker passes the proxies of its configuration on; checks do not ask them.
HEALTHCHECK --interval=5s --timeout=5s --start-period=90s \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:8080/readyz')"]
ENTRYPOINT ["turnfold"]
CMD ["--help"]
