needs() { echo redis-server redis-benchmark redis-cli; }

server() { exec redis-server --bind 127.0.0.1 --port "$PORT" --save '' --dir "$DIR"; }

# The times differ between runs; the tests that were run do not.
client() {
    redis-cli -p "$PORT" flushall
    redis-benchmark -p "$PORT" -n 1000 -c 10 -P 4 -t set,get,lrange_100 --csv | cut -d, -f1
    redis-cli -p "$PORT" -x set data <data
    redis-cli -p "$PORT" get data | digest
    redis-cli -p "$PORT" dbsize
}
