#!/bin/bash
# What docker-compose.yaml uses of the published image's entry point: a first start makes the database and its user.
set -euo pipefail

if [ "$(id -u)" = 0 ]; then
    mkdir -p "$PGDATA"
    chown -R postgres:postgres "$PGDATA" /var/run/postgresql
    exec setpriv --reuid postgres --regid postgres --init-groups "$0" "$@"
fi

if [ "${1:-}" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
    user=${POSTGRES_USER:-postgres}
    database=${POSTGRES_DB:-$user}
    # A start that was interrupted while it made the database begins again; only then is there something to remove.
    mkdir -p "$PGDATA"
    fresh=$PGDATA/.fresh
    rm -rf "$fresh"
    if [ -n "${POSTGRES_PASSWORD_FILE:-}" ]; then
        password=$(<"$POSTGRES_PASSWORD_FILE")
    else
        password=${POSTGRES_PASSWORD:?name a file in POSTGRES_PASSWORD_FILE}
    fi
    initdb --pgdata "$fresh" --username "$user" --auth-local trust --auth-host scram-sha-256 --encoding UTF8 \
        --pwfile <(printf '%s\n' "$password")
    unset password
    echo 'host all all all scram-sha-256' >> "$fresh/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$fresh/postgresql.conf"
    if [ "$database" != postgres ]; then
        echo "CREATE DATABASE \"${database//\"/\"\"}\"" | postgres --single -D "$fresh" -j postgres
    fi
    version=$(<"$fresh/PG_VERSION")
    rm "$fresh/PG_VERSION"  # moved last: it says that all the rest is there
    find "$PGDATA" -mindepth 1 -maxdepth 1 ! -name .fresh -exec rm -rf {} +
    find "$fresh" -mindepth 1 -maxdepth 1 -exec mv -t "$PGDATA" {} +
    rmdir "$fresh"
    printf '%s\n' "$version" > "$PGDATA/PG_VERSION"
fi
if [ "${1:-}" = postgres ]; then
    chmod 0700 "$PGDATA"
fi
exec "$@"
