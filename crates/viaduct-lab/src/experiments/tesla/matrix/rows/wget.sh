. "$rows/nginx.inc"
needs() { echo wget nginx; }

client() {
    wget -q -O - "http://127.0.0.1:$PORT/data" "http://127.0.0.1:$PORT/moved" | digest
    head -c 100000 data >"$HERE/data"
    wget -q -c -P "$HERE" "http://127.0.0.1:$PORT/data" && digest "$HERE/data"
}
