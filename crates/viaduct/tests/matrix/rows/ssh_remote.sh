. "$rows/sshd.inc"
needs() { echo ssh sshd ssh-keygen python3 git; }

# The daemon listens for the client, and the client connects to the daemon itself.
client() {
    python3 -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])' >"$HERE/port"
    ssh -o ExitOnForwardFailure=yes -R "127.0.0.1:$(cat "$HERE/port"):127.0.0.1:$PORT" 127.0.0.1 \
        "ssh-keyscan -T 5 -p $(cat "$HERE/port") -t ed25519 127.0.0.1 2>/dev/null | cut -d' ' -f3 >$HERE/key"
    cut -d' ' -f2 host.pub | cmp - "$HERE/key" && echo same
}
