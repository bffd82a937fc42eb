. "$rows/sshd.inc"
needs() { echo ssh sshd ssh-keygen ssh-keyscan git; }

# Remote forwarding: the daemon listens, and the client connects to the daemon itself.
client() {
    ssh -o ExitOnForwardFailure=yes -R "127.0.0.1:$SPARE:127.0.0.1:$PORT" 127.0.0.1 \
        "ssh-keyscan -T 5 -p $SPARE -t ed25519 127.0.0.1 2>/dev/null | cut -d' ' -f3 >$HERE/key"
    cut -d' ' -f2 host.pub | cmp - "$HERE/key" && echo same
}
