# A host whose resolver is behind a tapped link, and a SOCKS proxy, which resolves mars.test without
# a query. No other program knows this name. Runs in network and mount namespaces of its own, with
# $VIADUCT, $VIA and $GET set.
#
#   curl, python3, Go ──▶ viaduct run +socks ──▶ proxy, its own /etc/hosts ──▶ server
#            └ ─ ─ ─ would query 203.0.113.53 by v0, where the tap is
set -eu
ip link set lo up
ip link add v0 type veth peer name v1
ip link set v0 up
ip link set v1 up
ip addr add 203.0.113.1/24 dev v0
ip neigh add 203.0.113.53 lladdr 02:00:00:00:00:53 dev v0
echo 'nameserver 203.0.113.53
options timeout:1 attempts:1' > resolv.conf
mount --bind resolv.conf /etc/resolv.conf
echo '127.0.0.1 mars.test' > hosts
echo 'hosts: files' > nsswitch.conf

# Prints a line for each packet to port 53 on any interface: a control, or a query.
python3 -uc '
import socket
tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print("listening", flush=True)
while True:
    packet, at = tap.recvfrom(2048)
    if at[1] == 0x0800:
        protocol, rest = packet[9], packet[(packet[0] & 15) * 4:]
    elif at[1] == 0x86dd:
        protocol, rest = packet[6], packet[40:]
    else: continue
    if protocol in (6, 17) and rest[2:4] == bytes([0, 53]):
        print("control" if b"control" in rest else "query", at[0], flush=True)
' > seen &
tap=$!
python3 -uc '
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(("page of " + self.headers["Host"] + "\n").encode())
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Page).serve_forever()
' &
server=$!
unshare --mount sh -c 'mount --bind hosts /etc/hosts; mount --bind nsswitch.conf /etc/nsswitch.conf
    exec "$VIADUCT" proxy --listen 127.0.0.1:1080 --expect socks --allow-from 127.0.0.0/8 \
        --allow-to 127.0.0.0/8 --run-dir .' 2> proxy.log &
proxy=$!
trap 'kill -KILL $tap $server $proxy 2> /dev/null' EXIT
for port in 1080 8080; do
    until python3 -c "import socket; socket.create_connection(('127.0.0.1', $port))" 2> /dev/null; do
        sleep 0.1
    done
done
until grep -q listening seen; do sleep 0.05; done

run() { timeout --signal=KILL 30 "$VIADUCT" run --via "$VIA" +socks:via=127.0.0.1:1080 "$@"; }
run -- curl -sS -m 9 http://mars.test:8080/
run -- curl -sS -m 9 -6 http://mars.test:8080/
# A handler that carries no datagrams.
run +congestion -- curl -sS -m 9 http://mars.test:8080/ 2> streams.log || cat streams.log
run -- python3 -c '
import socket
s = socket.create_connection(("mars.test", 8080), 9)
s.sendall(b"GET / HTTP/1.0\r\nHost: python\r\n\r\n")
print(s.makefile().read().splitlines()[-1])
print(socket.getnameinfo(s.getpeername(), socket.NI_NUMERICSERV)[0])'
run -- "$GET" http://mars.test:8080/
# A name that the proxy does not know.
status=0
run -- curl -sS -m 9 http://venus.test:8080/ 2> /dev/null || status=$?
case $status in
    0) echo reached ;;
    6 | 7 | 52 | 56) echo not reached ;;
    *) echo "curl ended with $status" ;; # such as a timeout
esac
# The report names the host, and not the fake IP that stands for it.
run --report -- curl -sS -m 9 http://mars.test:8080/ 2>&1 | grep -o 'tcp mars.test:8080'
# Control: without Viaduct the tap sees queries. It sees packets in order, so all earlier ones have
# been counted when it has seen these.
getent hosts control.test || true
for _ in $(seq 100); do
    if grep -q control seen; then break; fi
    sleep 0.1
done
echo "queries: $(grep -c query seen || true)"
echo "queries of a plain program: $(grep -q control seen && echo seen || echo none)"
