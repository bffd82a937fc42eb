#!/bin/sh
# row.sh ROW needs|setup|server|client: runs one part of a row, in the row's directory $DIR.
#
# rows/ROW.sh defines `needs` (prints the required programs), `setup` (runs once, before all other
# parts), `server` (listens at 127.0.0.1:$PORT, in the foreground) and `client`. The client's
# standard output and exit status must be the same with and without handlers. $HERE is a new, empty
# directory for the files of each client; $SPARE is a port at which a client may listen.
set -eu

rows=$(dirname "$0")/rows
PATH=$PATH:/usr/sbin:/sbin:/usr/lib/git-core

setup() {
    head -c 300000 /dev/urandom >data
}

# Prints digests without file names, which differ between runs.
digest() {
    sha256sum "$@" | cut -c1-64
}

# shellcheck source=/dev/null
. "$rows/$1.sh"
cd "$DIR"
"$2"
