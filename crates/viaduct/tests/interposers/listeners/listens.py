"""Listens in the ways that programs do. The printed results must be the same under viaduct run."""
import errno, os, select, signal, socket, sys, threading, time

HOST = '127.0.0.1'
# Ports that are bound, closed and bound again, or bound only for IPv6. They are below the ephemeral
# range, so that no other program gets them, and no connect to such a port uses it as local port.
PORTS = [int(port) for port in sys.argv[1:]]


def say(*words):
    os.write(1, (' '.join(map(str, words)) + '\n').encode())


def bound(port=0, *options):
    s = socket.socket()
    for option in options:
        s.setsockopt(socket.SOL_SOCKET, option, 1)
    s.bind((HOST, port))
    return s


def client(port):
    c = socket.create_connection((HOST, port), timeout=9)
    c.sendall(b'hello')
    answer = c.recv(10)
    c.close()
    return answer.decode()


def in_thread(port):
    """Connects a client in a thread, which prints the answer."""
    thread = threading.Thread(target=lambda: say('a client heard', client(port)))
    thread.start()
    return thread


def serve(connection):
    connection.sendall(connection.recv(10))
    connection.close()


def fails(act):
    try:
        act()
        return 'worked'
    except OSError as error:
        return errno.errorcode[error.errno]


def addresses_are_the_kernels_to_give():
    port = PORTS[0]
    s = bound(port)
    s.listen()
    say('bind to a port that is listened at:', fails(lambda: socket.socket().bind((HOST, port))))
    s.close()
    again = bound(port, socket.SO_REUSEADDR)
    again.listen()
    say('once it is closed the port is free:', again.getsockname() == (HOST, port))
    say('it listens:', again.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    one = bound(0, socket.SO_REUSEADDR)
    other = bound(one.getsockname()[1], socket.SO_REUSEADDR)
    one.listen()
    say('the second of two that are bound there listens:', fails(other.listen))
    say('one listens again:', fails(lambda: one.listen(7)))
    nowhere = socket.socket()
    nowhere.listen()
    say('without an address:', nowhere.getsockname()[0], nowhere.getsockname()[1] > 0)
    say('at the address of another host:', fails(lambda: socket.socket().bind(('192.0.2.77', 1))))


def watched_from_before_it_listens():
    s, epoll = socket.socket(), select.epoll()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setblocking(False)
    epoll.register(s, select.EPOLLIN | select.EPOLLET)
    epoll.poll(0)
    s.bind((HOST, PORTS[1]))
    s.listen()
    thread = in_thread(s.getsockname()[1])
    say('epoll:', [fd == s.fileno() for fd, _ in epoll.poll(9)])
    connection, _ = s.accept()
    connection.setblocking(True)
    serve(connection)
    thread.join()
    epoll.unregister(s)
    port = s.getsockname()[1]
    s.close()
    say('its port is free then:', fails(lambda: bound(port, socket.SO_REUSEADDR)))


def several_at_one_port():
    group = [bound(0, socket.SO_REUSEPORT)]
    group.append(bound(group[0].getsockname()[1], socket.SO_REUSEPORT))
    for s in group:
        s.listen()
    threads = [in_thread(group[0].getsockname()[1]) for _ in range(8)]
    for _ in threads:
        ready, _, _ = select.select(group, [], [], 9)
        serve(ready[0].accept()[0])
    for thread in threads:
        thread.join()


def children(listen_first):
    """Accepts in a child, forked before or after its parent listens."""
    s = bound()
    if listen_first:
        s.listen()
    tell, told = os.pipe()[::-1]
    child = os.fork()
    if not child:
        os.read(told, 1)
        serve(s.accept()[0])
        os._exit(0)
    s.listen()
    os.write(tell, b'!')
    say('a child accepts:', client(s.getsockname()[1]))
    os.waitpid(child, 0)


def signals_interrupt():
    def stop(*_):
        raise InterruptedError

    s = bound()
    s.listen()
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        s.accept()
    except InterruptedError:
        say('a signal interrupts accept')


def of_ipv6(alone):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
    s.bind(('::', PORTS[3] if alone else 0))
    s.listen()
    s.settimeout(9)
    for host in [HOST] * (not alone) + ['::1']:
        c = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
        c.setblocking(False)
        c.connect_ex((host, s.getsockname()[1]))
        connection, peer = s.accept()
        own = connection.getsockname()
        say('by', host, peer[0], own[0], connection.getpeername() == peer, own[1] == s.getsockname()[1])
        same = peer[1] == c.getsockname()[1]
        say('from the port that the client sees:', same)
    if alone:
        port = s.getsockname()[1]
        say('by', HOST, fails(lambda: socket.create_connection((HOST, port), timeout=9)))


def options_are_inherited():
    s = bound()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 77)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 40000)
    s.listen()
    thread = in_thread(s.getsockname()[1])
    connection, _ = s.accept()
    ask = connection.getsockopt
    say('options:', ask(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0,
        ask(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), ask(socket.SOL_SOCKET, socket.SO_RCVBUF),
        ask(socket.IPPROTO_TCP, socket.TCP_NODELAY), os.get_inheritable(s.fileno()))
    serve(connection)
    thread.join()


def sharing_is_as_it_was_set():
    for options in [], [socket.SO_REUSEADDR], [socket.SO_REUSEPORT]:
        s = bound(0, *options)
        s.listen()
        thread = in_thread(s.getsockname()[1])
        connection, _ = s.accept()
        say('shares:', *(of.getsockopt(socket.SOL_SOCKET, option) for of in (s, connection)
                         for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT)))
        serve(connection)
        thread.join()


def no_listener_accepts_a_connect_in_progress():
    s = bound()
    s.listen()
    early = 0
    for _ in range(100):
        c = socket.socket()
        c.setblocking(False)
        c.connect_ex(s.getsockname())
        connection, _ = s.accept()
        early += fails(c.getpeername) != 'worked'
        connection.close()
        c.close()
    say('accepted while the client still connects:', early)


def a_listener_that_is_closed_refuses():
    s = bound(PORTS[2])
    s.listen()
    at = s.getsockname()
    s.close()
    time.sleep(0.2)
    say('after it is closed:', fails(lambda: socket.create_connection(at, timeout=9)))


def no_more_are_let_in_than_may_wait():
    s = bound()
    s.listen(2)
    clients = []
    for _ in range(50):
        c = socket.socket()
        c.setblocking(False)
        c.connect_ex(s.getsockname())
        clients.append(c)
    time.sleep(0.5)
    let_in = sum(fails(c.getpeername) == 'worked' for c in clients)
    # The kernel accepts one more than the backlog, and as many again may wait before the chain.
    say('three are let in:', 3 <= let_in <= 7 or let_in)
    for c in clients:
        c.close()
    s.settimeout(9)
    for _ in range(3):
        s.accept()[0].close()
    thread = in_thread(s.getsockname()[1])
    while True:
        connection, _ = s.accept()
        connection.setblocking(True)
        said = connection.recv(10)
        if said:
            connection.sendall(said)
            break
    thread.join()


addresses_are_the_kernels_to_give()
watched_from_before_it_listens()
several_at_one_port()
children(listen_first=True)
children(listen_first=False)
signals_interrupt()
of_ipv6(alone=False)
of_ipv6(alone=True)
options_are_inherited()
sharing_is_as_it_was_set()
no_listener_accepts_a_connect_in_progress()
a_listener_that_is_closed_refuses()
no_more_are_let_in_than_may_wait()
say('done')
