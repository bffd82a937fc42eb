. "$rows/sshd.inc"
needs() { echo git ssh sshd ssh-keygen; }

client() {
    GIT_SSH_COMMAND="ssh $(options) -p $PORT"
    export GIT_SSH_COMMAND
    git clone -q "ssh://127.0.0.1$DIR/repository" "$HERE/clone"
    git -C "$HERE/clone" rev-parse HEAD
    git -C "$HERE/clone" push -q origin "HEAD:refs/heads/${HERE##*/}"
    git -C repository rev-parse "${HERE##*/}"
}
