# The local stack as one image: servers built from their pins, Python packages from the lock.
FROM rust:1.95-slim-bookworm AS rust

FROM golang:1.26-bookworm AS build
COPY --from=rust /usr/local/cargo /usr/local/cargo
COPY --from=rust /usr/local/rustup /usr/local/rustup
ENV PATH=/usr/local/cargo/bin:$PATH RUSTUP_HOME=/usr/local/rustup CARGO_HOME=/usr/local/cargo XDG_CACHE_HOME=/opt/cache
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv maven openjdk-17-jdk-headless
WORKDIR /opt/streamops
COPY . .
RUN python3 include/stack/install.py \
 && .venv/bin/python -m pip install --no-deps -r include/stack/compose/requirements.txt \
 && rm -rf /opt/cache/go-build /opt/cache/streamops/build

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 openjdk-17-jre-headless procps ca-certificates \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt /opt
ENV XDG_CACHE_HOME=/opt/cache STREAMOPS_HOME=/var/lib/streamops
WORKDIR /opt/streamops
CMD [".venv/bin/python", "-m", "stack.container", "run"]
