. "$rows/sshd.inc"
needs() { echo ssh sshd ssh-keygen scp git; }

# A command with input and an exit status, a file copied in both directions, and a forwarded port.
client() {
    ssh 127.0.0.1 'sha256sum | cut -c1-64; set -- $SSH_CONNECTION; echo $1 $3' <data
    ssh 127.0.0.1 'exit 9' || echo "status $?"
    scp data "127.0.0.1:$HERE/there"
    scp "127.0.0.1:$HERE/there" "$HERE/back"
    digest "$HERE/there" "$HERE/back"
    ssh -o ExitOnForwardFailure=yes -f -L "127.0.0.1:$SPARE:127.0.0.1:$PORT" 127.0.0.1 'sleep 1'
    # A second session inside the first.
    PORT=$SPARE
    ssh 127.0.0.1 'sha256sum | cut -c1-64' <data
}
