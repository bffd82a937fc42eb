needs() { echo iperf3; }

server() { exec iperf3 -s -B 127.0.0.1 -p "$PORT"; }

# Prints the last line of an upload and of a download. The server accepts the next test only after
# it has ended the previous one, hence the retries.
client() {
    for way in '' -R; do
        # shellcheck disable=SC2086
        until iperf3 -c 127.0.0.1 -p "$PORT" -n 2M -P 2 $way >"$HERE/said"; do sleep 0.1; done
        tail -n 1 "$HERE/said"
    done
}
