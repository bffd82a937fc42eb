needs() { echo iperf3; }

server() { exec iperf3 -s -B 127.0.0.1 -p "$PORT"; }

# What was sent, and that it was received; there and back.
client() {
    for way in '' -R; do
        # shellcheck disable=SC2086
        iperf3 -c 127.0.0.1 -p "$PORT" -n 2M -P 2 $way | tail -n 1
    done
}
