needs() { echo nc; }

# One after the other; each is sent a file, and sends one.
server() {
    while nc -N -l 127.0.0.1 "$PORT" <data >"received-$PORT"; do :; done
}

client() {
    nc -N 127.0.0.1 "$PORT" <row.in | digest
    nc -z 127.0.0.1 1 || echo "closed: $?"
}

setup() {
    head -c 300000 /dev/urandom >data
    head -c 200000 /dev/urandom >row.in
}
