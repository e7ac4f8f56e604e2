# Two stages: the wheel and its dependencies are built in the first, only the result is in the image.
ARG PYTHON=3.13
FROM python:${PYTHON}-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY consumerd consumerd
RUN python -m venv /opt/consumerd && /opt/consumerd/bin/pip install --no-cache-dir ".[parquet]"

FROM python:${PYTHON}-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/consumerd --create-home consumerd
COPY --from=build /opt/consumerd /opt/consumerd
ENV PATH=/opt/consumerd/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CONSUMERD_HTTP__LISTEN=0.0.0.0:9309
USER consumerd
WORKDIR /var/lib/consumerd
EXPOSE 9309
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9309/livez', timeout=2)"]
# exec form: the process is pid 1 and gets the signals; it reaps nothing, as it starts no children
ENTRYPOINT ["consumerd"]
CMD ["run", "--config", "/etc/consumerd/config.yaml"]
