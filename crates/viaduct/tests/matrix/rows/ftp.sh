needs() { echo tnftp /usr/lib/python3/dist-packages/pyftpdlib; }

setup() {
    mkdir -p root/in
    head -c 300000 /dev/urandom >root/data
    cp root/data data
}

# That of Debian's python3-pyftpdlib.
server() { exec /usr/bin/python3 -m pyftpdlib -i 127.0.0.1 -p "$PORT" -w -d "$DIR/root"; }

# The server listens for the data; then the client does.
client() {
    for mode in on off; do
        tnftp -n -v 127.0.0.1 "$PORT" >"$HERE/said" 2>&1 <<END
user anonymous a@example.org
passive $mode
binary
get data $HERE/$mode
put data in/${HERE##*/}-$mode
ls . $HERE/list-$mode
bye
END
        grep -oE '^(1|2|4|5)[0-9][0-9] ' "$HERE/said"
        digest "$HERE/$mode" "root/in/${HERE##*/}-$mode"
    done
}
