needs() { echo rsync; }

setup() {
    mkdir -p tree/deep
    head -c 300000 /dev/urandom >tree/data
    for i in 1 2 3 4 5 6 7 8 9; do echo "$i" >"tree/deep/$i"; done
}

# An rsync daemon.
server() {
    root=
    [ "$(id -u)" != 0 ] || root='uid = root
gid = root'
    cat >"rsyncd-$PORT.conf" <<END
use chroot = no
$root
[tree]
path = $DIR/tree
[here]
path = $DIR
read only = no
END
    exec rsync --daemon --no-detach --address=127.0.0.1 --port="$PORT" --config="rsyncd-$PORT.conf"
}

client() {
    rsync -a "rsync://127.0.0.1:$PORT/tree/" "$HERE/down/"
    rsync -az "$HERE/down/" "rsync://127.0.0.1:$PORT/here/${HERE##*/}/up/"
    (cd "$HERE/up" && find . -type f | sort | xargs sha256sum)
}
