#!/bin/sh
# row.sh ROW needs|setup|server|client: does that part of a row, in the row's own directory $DIR.
#
# rows/ROW.sh defines `needs` (the programs it names), `setup` (once, before all), `server` (at
# 127.0.0.1:$PORT, in the foreground) and `client`, whose standard output and exit status must be the
# same whatever stands between. $HERE is for a client's files: empty, and each time another; $SPARE is a port
# at which it may listen itself.
set -eu

rows=$(dirname "$0")/rows
PATH=$PATH:/usr/sbin:/sbin:/usr/lib/git-core

setup() {
    head -c 300000 /dev/urandom >data
}

# The digest alone: what the file is called differs.
digest() {
    sha256sum "$@" | cut -c1-64
}

# shellcheck source=/dev/null
. "$rows/$1.sh"
cd "$DIR"
"$2"
