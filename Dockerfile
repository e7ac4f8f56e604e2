# SPDX-License-Identifier: Apache-2.0
# Two stages: the package and its dependencies are installed in the first, only the result is in the image: the native
# kernel, and no compiler. BASE is any image of Debian's kin with Python 3.11 to 3.14, venv included; both stages need the
# same one, since a virtual environment belongs to the interpreter that made it.
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
# parquet,speed,spark,java makes the image of deploy/spark, which brings its own Java
ARG EXTRAS=parquet,speed
# Python's headers are a package of their own where Python is Debian's
RUN headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")') && \
    apt-get update && \
    apt-get install --yes --no-install-recommends gcc libc6-dev $([ -e "$headers" ] || echo libpython3-dev)
WORKDIR /src
COPY pyproject.toml setup.py README.md LICENSE NOTICE constraints.txt config.example.yaml ./
COPY consumerd consumerd
RUN python3 -m venv /opt/consumerd && \
    CONSUMERD_REQUIRE_KERNEL=1 /opt/consumerd/bin/pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

FROM ${BASE}
RUN groupadd --gid 10001 consumerd && \
    useradd --no-log-init --uid 10001 --gid 10001 --home-dir /var/lib/consumerd --no-create-home consumerd && \
    install --directory --owner=10001 --group=10001 /var/lib/consumerd
COPY --from=build /opt/consumerd /opt/consumerd
# a default: a mounted file that sets http.listen wins over it (README, "As a container")
ENV PATH=/opt/consumerd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CONSUMERD_DEFAULT__HTTP__LISTEN=0.0.0.0:9309
# as a number, so that an orchestrator can see that it is not root
USER 10001
WORKDIR /var/lib/consumerd
EXPOSE 9309
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-m", "consumerd.daemon.health"]
# exec form: the process is pid 1 and gets the signals; it reaps nothing, as it starts no children
ENTRYPOINT ["consumerd"]
CMD ["run", "--config", "/etc/consumerd/config.yaml"]
