needs() { echo nc; }

setup() { head -c 300000 /dev/urandom >data; }

# One after the other: one that takes, one that gives. (At both at once it loses the end of what it sends.)
server() {
    while :; do
        nc -d -l 127.0.0.1 "$PORT" >>"received-$PORT"
        nc -N -l 127.0.0.1 "$PORT" <data
    done
}

client() {
    nc -N 127.0.0.1 "$PORT" <data
    # Between the two nobody listens: a client is refused, or reset, of which this one says nothing.
    until nc -d 127.0.0.1 "$PORT" >"$HERE/got" && [ -s "$HERE/got" ]; do sleep 0.1; done
    digest "$HERE/got"
    tail -c 300000 "received-$PORT" | digest
    nc -z 127.0.0.1 1 || echo "closed: $?"
}
