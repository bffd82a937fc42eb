. "$rows/nginx.inc"
needs() { echo wrk nginx; }

# Prints errors, if any, and whether data arrived.
client() {
    wrk -t 2 -c 16 -d 1s "http://127.0.0.1:$PORT/nginx-$PORT.conf" >"$HERE/said"
    grep -E 'errors|Non-2xx' "$HERE/said" || :
    grep -c 'requests in' "$HERE/said"
    ! grep -q '^ *0 requests' "$HERE/said"
}
