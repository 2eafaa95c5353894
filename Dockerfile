# Two images: MinIO, which publishes none any more, and StreamOps with what its programs run on.
#
# Every stage copies only the pins that it is built from, and the sources come last: a change in them makes new layers
# for the sources alone. It builds with BuildKit and with the engine's older builder, so it uses nothing of BuildKit's.

FROM golang:1.26-bookworm AS minio-build
RUN apt-get update && apt-get install -y --no-install-recommends python3 && rm -rf /var/lib/apt/lists/*
ENV XDG_CACHE_HOME=/opt/cache
WORKDIR /opt/streamops
COPY include/stack/builds/minio include/stack/builds/minio
# Compiled from the pins alone; the set-up then finds every package compiled and only links them.
RUN cd include/stack/builds/minio && go build -gcflags=all=-dwarf=false -o /dev/null tool
COPY include/stack/install.py include/stack/builds.py include/stack/__init__.py include/stack/
RUN python3 include/stack/install.py --parts minio \
 && install -m 755 /opt/cache/streamops/bin/minio-* /usr/local/bin/minio

FROM debian:bookworm-slim AS minio
RUN useradd --uid 10001 --home-dir /var/lib/minio --create-home --shell /usr/sbin/nologin minio
COPY --from=minio-build /usr/local/bin/minio /usr/local/bin/minio
USER 10001
EXPOSE 9000 9001
ENTRYPOINT ["minio"]
CMD ["server", "/var/lib/minio", "--console-address", ":9001"]

# What the jars of Spark's connectors are: resolved by Maven, which the image does not need afterwards.
FROM debian:bookworm-slim AS jars
RUN apt-get update && apt-get install -y --no-install-recommends python3 maven && rm -rf /var/lib/apt/lists/*
ENV XDG_CACHE_HOME=/opt/cache
WORKDIR /opt/streamops
COPY include/stack/install.py include/stack/builds.py include/stack/__init__.py include/stack/
COPY include/stack/builds/spark-jars include/stack/builds/spark-jars
RUN python3 include/stack/install.py --parts spark-jars

FROM debian:bookworm-slim AS packages
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv ca-certificates \
 && rm -rf /var/lib/apt/lists/*
ENV XDG_CACHE_HOME=/opt/cache PIP_NO_CACHE_DIR=1
WORKDIR /opt/streamops
COPY include/stack/install.py include/stack/builds.py include/stack/__init__.py include/stack/
COPY requirements.lock ./
RUN python3 include/stack/install.py --parts python
# Compiled once here: nobody may write there later, and every start would compile again. Nothing changes there either,
# so Python need not look at the sources' times. Some packages carry examples of broken sources: those fail, rightly.
RUN .venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash .venv/lib || true

FROM debian:bookworm-slim AS streamops
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 openjdk-17-jre-headless procps ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --home-dir /var/lib/streamops --create-home --shell /usr/sbin/nologin streamops \
 && cd /var/lib/streamops && mkdir -p airflow/logs data/fleet node told \
 && for group in postgres minio grafana init spark-master node-1 node-2 node-3 airflow cli; do mkdir -p secrets/$group; done \
 && chown -R streamops: . # owners of new volumes
ENV XDG_CACHE_HOME=/opt/cache STREAMOPS_HOME=/var/lib/streamops PATH=/opt/streamops/.venv/bin:$PATH
WORKDIR /opt/streamops
COPY --from=jars /opt/cache/streamops /opt/cache/streamops
COPY --from=packages /opt/streamops/.venv .venv
COPY requirements.lock requirements.txt pyproject.toml ./
COPY include include
COPY spark_jobs spark_jobs
COPY plugins plugins
COPY dags dags
# A checkout may be closed to others; what it holds is for the image's user to read, and for nobody to write.
RUN python3 include/stack/install.py --parts streamops \
 && .venv/bin/python -m compileall -q include spark_jobs plugins dags \
 && chmod -R a+rX,go-w include spark_jobs plugins dags requirements.lock requirements.txt pyproject.toml
USER 10001
CMD ["streamops", "--help"]
