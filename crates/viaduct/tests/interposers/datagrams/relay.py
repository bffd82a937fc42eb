# A SOCKS5 proxy with a relay for datagrams, which misbehaves: relay.py PORT
#
#   program ══ viaduct ── TCP: association ──▶ here        prints its events, one a line
#                      ══ header, datagram ══▶ relay ══▶ far end
#                      ◀═ fragments, garbage, the answer ═══════╝
#
# The datagram `cut` ends its association. mars.test is 127.0.0.1.
import socket, socketserver, sys, threading

def read_address(data):
    kind = data[0]
    if kind == 1: return 'v4', socket.inet_ntop(socket.AF_INET, data[1:5]), data[5:]
    if kind == 4: return 'v6', socket.inet_ntop(socket.AF_INET6, data[1:17]), data[17:]
    return 'name', data[2:2 + data[1]].decode(), data[2 + data[1]:]

def header(host, port):
    v6 = ':' in host
    family = socket.AF_INET6 if v6 else socket.AF_INET
    return b'\0\0\0' + (b'\4' if v6 else b'\1') + socket.inet_pton(family, host) + port.to_bytes(2, 'big')

class Client(socketserver.BaseRequestHandler):
    def handle(self):
        hear = self.request
        if hear.recv(3) != b'\5\1\0': return
        hear.sendall(b'\5\0')
        if hear.recv(10)[:3] != b'\5\3\0': return
        inside = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        inside.bind(('127.0.0.1', 0))
        # The unspecified address means that the relay has the proxy's address.
        hear.sendall(b'\5\0\0\1\0\0\0\0' + inside.getsockname()[1].to_bytes(2, 'big'))
        print('associated', flush=True)
        threading.Thread(target=self.relay, args=(hear, inside), daemon=True).start()
        while hear.recv(1): pass
        print('over', flush=True)
        inside.close()

    def relay(self, hear, inside):
        out = {}
        for family in socket.AF_INET, socket.AF_INET6:
            out[family] = socket.socket(family, socket.SOCK_DGRAM)
        stranger = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        while True:
            data, client = inside.recvfrom(70000)
            kind, host, rest = read_address(data[3:])
            port, data = int.from_bytes(rest[:2], 'big'), rest[2:]
            print('to', kind, host, port, len(data), flush=True)
            if data == b'cut':
                hear.shutdown(socket.SHUT_RDWR)
                return
            if host == 'mars.test': host = '127.0.0.1'
            by = out[socket.AF_INET6 if ':' in host else socket.AF_INET]
            by.sendto(data, (host, port))
            answer, at = by.recvfrom(70000)
            whole = header(at[0], at[1]) + answer
            inside.sendto(b'\0\0\1' + whole[3:], client)
            inside.sendto(b'\0\0\x80' + whole[3:], client)
            inside.sendto(b'\0\0\0\7garbage', client)
            inside.sendto(b'', client)
            inside.sendto(header('224.0.0.1', 9) + b'from a group', client)
            stranger.sendto(whole, client)
            inside.sendto(whole, client)

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

server = Server(('127.0.0.1', int(sys.argv[1])), Client)
print('listening', flush=True)
server.serve_forever()
