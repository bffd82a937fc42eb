needs() { echo tnftp /usr/lib/python3/dist-packages/pyftpdlib; }

setup() {
    mkdir -p root/in
    head -c 300000 /dev/urandom >root/data
    cp root/data data
}

# Server from Debian's package python3-pyftpdlib.
server() { exec /usr/bin/python3 -m pyftpdlib -i 127.0.0.1 -p "$PORT" -w -d "$DIR/root"; }

# Passive mode: the server listens for the data connection.
client() { transfer on; }

# An upload, a download and a listing, with passive mode on or off.
transfer() {
    tnftp -n -v 127.0.0.1 "$PORT" >"$HERE/said" 2>&1 <<END
user anonymous a@example.org
passive $1
binary
get data $HERE/got
put data in/${HERE##*/}
ls . $HERE/list
y
bye
END
    # The data connection may be open before the command (125) or after it (150).
    grep -oE '^[245][0-9][0-9] ' "$HERE/said"
    digest "$HERE/got" "root/in/${HERE##*/}"
}
