needs() { echo nc; }

setup() { head -c 300000 /dev/urandom >data; }

# A client that sends, then one that receives. (With both directions at once nc loses the end of
# the data that it sends.)
server() {
    while :; do
        nc -d -l 127.0.0.1 "$PORT" >>"received-$PORT"
        nc -N -l 127.0.0.1 "$PORT" <data
    done
}

client() {
    nc -N 127.0.0.1 "$PORT" <data
    # Until the server listens again, a client is refused or reset, and nc does not report it.
    until nc -d 127.0.0.1 "$PORT" >"$HERE/got" && [ -s "$HERE/got" ]; do sleep 0.1; done
    digest "$HERE/got"
    tail -c 300000 "received-$PORT" | digest
    nc -z 127.0.0.1 1 || echo "closed: $?"
}
