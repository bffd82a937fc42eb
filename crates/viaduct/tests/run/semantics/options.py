"""Socket options of a wrapped program apply to the connection that its master opens.

    options.py VIADUCT VIA        in a network namespace of its own

Prints a line for each case that fails.
"""
import re
import socket
import subprocess
import sys
import time

VIADUCT, VIA = sys.argv[1:]
MARKED = '198.51.100.1'

# PROGRAM HOST PORT WHEN: connects, and sets options `before` or `after` the connect, or only a mark
# before it (`marked`), or none (`unset`). With `listen`, accepts a connection and sets options on
# it.
PROGRAM = '''
import socket, sys, time
def options(s, v6):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 3)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
    if v6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x20)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 33)
    else:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0x20)
        s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 33)
    assert s.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77
    assert s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
host, port, when = sys.argv[1:]
v6 = ':' in host
s = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
if when == 'listen':
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((host, int(port)))
    s.listen()
    print('listens', flush=True)
    s = s.accept()[0]
    s.recv(1)
if when == 'before': options(s, v6)
if when in ('before', 'marked'): s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 99)
try:
    if when != 'listen': s.connect((host, int(port)))
except OSError:
    sys.exit(9)
if when in ('after', 'listen'):
    options(s, v6)
    time.sleep(PAUSE)
s.sendall(b'said')
sys.stdin.readline()
'''
# By cgroup, options of a connected socket are applied a moment later.
PROGRAM = PROGRAM.replace('PAUSE', '0.3' if VIA == '--via=cgroup' else '0')


def start(host, port, when):
    words = [VIADUCT, 'run', '+latency:delay=1ms', VIA, '--', 'python3', '-c', PROGRAM, host, str(port), when]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def hop_fields(tap, port):
    """Returns class and hop limit of the last packet from or to `port` with the program's data."""
    found = None
    while True:
        try:
            packet = tap.recv(65536)
        except BlockingIOError:
            return found
        if packet[-4:] != b'said':
            continue
        v6 = packet[0] >> 4 == 6
        header = 40 if v6 else 20
        ports = [int.from_bytes(packet[header + n:header + n + 2], 'big') for n in (0, 2)]
        if port in ports:
            tos = (packet[0] & 15) << 4 | packet[1] >> 4 if v6 else packet[1]
            found = (tos, packet[7] if v6 else packet[8])


def of_socket(peer_port):
    """Returns keepalive timer and mark of the socket that is connected to this port."""
    shown = subprocess.run(['ss', '-tnoem'], capture_output=True, text=True).stdout
    shown = [line for line in shown.splitlines() if re.search(rf':{peer_port}\s+(timer|ino|uid|users|sk:|cgroup|fwmark)', line)]
    shown = ' '.join(shown)
    timer = re.search(r'timer:\(keepalive,([^,]*),', shown)
    mark = re.search(r'fwmark:0x([0-9a-f]+)', shown)
    return timer and timer.group(1), mark and int(mark.group(1), 16)


def check(case, got, expected):
    if got != expected:
        print(f'{case}: {got} instead of {expected}')


for host in ['127.0.0.1', '::1']:
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    for when in ['before', 'after', 'listen', 'unset']:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.ntohs(3))
        tap.setblocking(False)
        if when == 'listen':
            port = 4000
            program = start(host, port, when)
            program.stdout.readline()
            stream = socket.create_connection((host, port))
            stream.sendall(b'x')
            port = stream.getsockname()[1]
        else:
            listener = socket.socket(family)
            listener.bind((host, 0))
            listener.listen()
            port = listener.getsockname()[1]
            program = start(host, port, when)
            stream = listener.accept()[0]
        said = b''
        while len(said) < 4:
            said += stream.recv(4)
        time.sleep(0.3)
        timer, mark = of_socket(port)
        case = f'{VIA} {host} {when}'
        is_set = when != 'unset'
        check(f'{case}: keepalive in a minute', bool(re.match('1min1.s', timer or '')), is_set)
        if when != 'listen':
            check(f'{case}: mark', mark, 99 if when == 'before' else None)
        check(f'{case}: class and hop limit', hop_fields(tap, port), (0x20, 33) if is_set else (0, 64))
        program.stdin.write('\n')
        program.stdin.close()
        stream.close()
        program.wait()

# An address that only marked connections can reach.
listener = socket.create_server(('0.0.0.0', 0))
port = listener.getsockname()[1]
for when in ['marked', 'unset']:
    program = start(MARKED, port, when)
    # Without input the program ends after its connect.
    program.stdin.close()
    check(f'{VIA} {when}: exit status', program.wait(), 0 if when == 'marked' else 9)
    listener.settimeout(10 if when == 'marked' else 0.3)
    try:
        listener.accept()[0].close()
        reached = 'marked'
    except TimeoutError:
        reached = 'unset'
    check(f'{VIA} {when}: reached', reached, when)
