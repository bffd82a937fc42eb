. "$rows/nginx.inc"
needs() { echo curl nginx; }

# Sequential requests on one connection, concurrent requests, a redirect, and an upload.
client() {
    url=http://127.0.0.1:$PORT
    curl -sS "$url/data" "$url/data" | digest
    curl -sS -Z "$url/data?[1-6]" -o "$HERE/#1" && digest "$HERE"/[1-6]
    curl -sSL "$url/moved" | digest
    curl -sS -T data "$url/put/${HERE##*/}" -o /dev/null -w '%{http_code} %{remote_ip}\n'
    digest "put/${HERE##*/}"
    curl -sS "$url/none" -o /dev/null -f
}
