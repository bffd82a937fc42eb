needs() { echo python3; }

server() { exec python3 -m http.server --bind 127.0.0.1 "$PORT"; }

client() {
    python3 - "$PORT" <<'END'
import concurrent.futures, hashlib, sys, urllib.request
url = f"http://127.0.0.1:{sys.argv[1]}/data"
get = lambda _: hashlib.sha256(urllib.request.urlopen(url, timeout=20).read()).hexdigest()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    print(*pool.map(get, range(16)), sep="\n")
END
}
