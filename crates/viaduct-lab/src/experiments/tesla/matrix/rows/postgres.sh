needs() { echo psql pgbench postgres unshare; }

# The server refuses to run as root, so it runs as another user, in a user namespace.
as_user() { unshare --user --map-user=1000 --map-group=1000 "$@"; }

setup() {
    as_user "$(binary initdb)" -D base -A trust -U someone --no-sync >/dev/null
}

# Debian installs servers of several versions in directories outside PATH.
binary() {
    for at in /usr/lib/postgresql/*/bin/"$1"; do [ ! -x "$at" ] || last=$at; done
    echo "${last:-$1}"
}

server() {
    exec unshare --user --map-user=1000 --map-group=1000 "$(binary postgres)" -D base -p "$PORT" \
        -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off
}

client() {
    export PGHOST=127.0.0.1 PGPORT="$PORT" PGUSER=someone PGDATABASE=postgres
    pgbench -i -q 2>/dev/null
    pgbench -n -t 20 -c 4 -j 2 | grep -E 'processed|failed'
    psql -qAt -c 'select sum(aid), count(*) from pgbench_accounts'
    psql -qAt -c 'copy (select * from generate_series(1, 50000)) to stdout' | digest
}
