//! Datagrams by `seccomp` and `preload`, whose sockets are in a namespace of their own: errors and
//! behaviour are the same as without viaduct.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::socket::hop_fields::{self, HopFields, enable_hop_fields};

use super::DELAY;
use super::world::{command, far_end, global_address, output, run, text, world};

const VIAS: [&str; 2] = ["--via=seccomp", "--via=preload"];

/// Checks that a Python program prints the same under each interposer as without viaduct. Returns
/// the output.
fn says_the_same(program: &str, words: &[&str]) -> String {
    let plain = text(&command("python3", &[&["-c", program], words].concat()).stdout);
    for via in VIAS {
        let output = output(&[&[DELAY, via, "--", "python3", "-c", program], words].concat());
        assert!(output.status.success(), "{via} {output:?}");
        assert_eq!(text(&output.stdout), plain, "{via}");
    }
    plain
}

/// A Python program under an interposer. It answers each line of its input with a line.
struct Talk {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    fn begin(via: &str, program: &str) -> Talk {
        let mut command = run(&[DELAY, via, "--", "python3", "-c", program]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Talk { input: child.stdin.take().unwrap(), lines, child }
    }

    fn write_line(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn read_line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }

    fn end(self) {
        let Talk { mut child, input, .. } = self;
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

#[test]
fn the_unspecified_address_is_this_host() {
    if !world() {
        return;
    }
    let port = far_end("127.0.0.1:0").port().to_string();
    let six = far_end("[::1]:0").port().to_string();
    let program = "
import socket, sys
for family, any, port in (socket.AF_INET, '0.0.0.0', sys.argv[1]), (socket.AF_INET6, '::', \
sys.argv[2]), (socket.AF_INET6, '::ffff:0.0.0.0', sys.argv[1]):
    for connects in False, True:
        s = socket.socket(family, socket.SOCK_DGRAM)
        s.settimeout(5)
        if connects: s.connect((any, int(port))); s.send(b'x')
        else: s.sendto(b'x', (any, int(port)))
        data, peer = s.recvfrom(99)
        print(data.split()[0], peer[0])
";
    let plain = says_the_same(program, &[&port, &six]);
    assert_eq!(plain.lines().count(), 6, "{plain}");
}

#[test]
fn a_closed_socket_refuses_datagrams() {
    if !world() {
        return;
    }
    let program = "
import socket, sys
for _ in range(3):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(('127.0.0.1', 0))
    print(s.getsockname()[1], flush=True)
    s.recvfrom(9)
    s.close()
    print('closed', flush=True)
    sys.stdin.readline()
";
    for via in VIAS {
        let mut talk = Talk::begin(via, program);
        for _ in 0..3 {
            let port: u16 = talk.read_line().parse().unwrap();
            let near = UdpSocket::bind("127.0.0.1:0").unwrap();
            near.connect(("127.0.0.1", port)).unwrap();
            near.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            near.send(b"x").unwrap();
            assert_eq!(talk.read_line(), "closed");
            // The master also removes closed sockets once a second, after which a send fails in any
            // case. Three attempts in a row cannot all coincide with such a removal.
            let began = Instant::now();
            let refused = || {
                near.send(b"y").is_err()
                    || near
                        .recv(&mut [0; 9])
                        .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
            };
            while !refused() {
                assert!(
                    began.elapsed() < Duration::from_millis(400),
                    "{via}: no error is returned"
                );
            }
            talk.write_line("");
        }
        talk.end();
    }
}

#[test]
fn errors_equal_the_kernels() {
    if !world() {
        return;
    }
    let program = "
import ctypes, errno, socket, struct
def tried(act):
    try: act(); return 'done'
    except OSError as e: return errno.errorcode[e.errno]
def of(family=socket.AF_INET): return socket.socket(family, socket.SOCK_DGRAM)
print('no route', tried(lambda: of().connect(('203.0.113.1', 53))))
print('no route, IPv6', tried(lambda: of(socket.AF_INET6).connect(('2001:db8:9::1', 53))))
print('no route, sent', tried(lambda: of().sendto(b'x', ('203.0.113.1', 53))))
print('no route, sent, IPv6', tried(lambda: of(socket.AF_INET6).sendto(b'x', ('2001:db8:9::1', \
53))))
print('loopback', tried(lambda: of().connect(('127.0.0.1', 53))))
print('no address', tried(lambda: of().bind(('203.0.113.1', 0))))
libc = ctypes.CDLL(None, use_errno=True)
four = struct.pack('=H', socket.AF_INET) + struct.pack('!H4s8x', 0, b'\\x7f\\0\\0\\1')
for family in socket.AF_INET, socket.AF_INET6:
    for length in 16, 28:
        s = of(family)
        result = libc.bind(s.fileno(), four.ljust(28, b'\\0'), length)
        print('IPv4 bound', result, ctypes.get_errno() if result else 0)
";
    let plain = says_the_same(program, &[]);
    assert!(plain.contains("no route ENETUNREACH"), "{plain}");
}

#[test]
fn changes_of_addresses_and_routes_are_followed() {
    if !world() {
        return;
    }
    let program = "
import socket, sys
for line in sys.stdin:
    s = socket.socket(socket.AF_INET6 if ':' in line else socket.AF_INET, socket.SOCK_DGRAM)
    try: s.sendto(b'x', (line.strip(), 53)); print('sent', flush=True)
    except OSError as e: print(e.errno, flush=True)
";
    for via in VIAS {
        let mut talk = Talk::begin(via, program);
        let mut becomes = |to: &str, expected: &str| {
            let began = Instant::now();
            loop {
                talk.write_line(to);
                let said = talk.read_line();
                if said == expected {
                    return;
                }
                assert!(began.elapsed() < Duration::from_secs(5), "{via} {to}: {said}");
                thread::sleep(Duration::from_millis(20));
            }
        };
        becomes("2001:db8::9", "101");
        becomes("198.51.100.9", "101");
        global_address();
        assert!(command("ip", &["addr", "add", "198.51.100.1/24", "dev", "d0"]).status.success());
        becomes("2001:db8::9", "sent");
        becomes("198.51.100.9", "sent");
        becomes("203.0.113.9", "101");
        let default = ["route", "add", "default", "via", "198.51.100.2"];
        assert!(command("ip", &default).status.success());
        becomes("203.0.113.9", "sent");
        assert!(command("ip", &["link", "del", "d0"]).status.success());
        becomes("203.0.113.9", "101");
        talk.end();
    }
}

/// Starts a far end that answers each datagram with its hop limit and class, in packets with
/// hop limit 33 and class 0x48.
fn marking_far_end(at: &str) -> SocketAddr {
    let socket = UdpSocket::bind(at).unwrap();
    enable_hop_fields(&socket).unwrap();
    let address = socket.local_addr().unwrap();
    thread::spawn(move || {
        let mut buffer = [0; 100];
        let own = HopFields { limit: Some(33), class: Some(0x48) };
        while let Ok((_, from, HopFields { limit, class })) =
            hop_fields::receive_from(socket.as_fd(), &mut buffer)
        {
            let answer = format!("{} {}", limit.unwrap_or(0), class.unwrap_or(0));
            let _ = hop_fields::send_to(socket.as_fd(), answer.as_bytes(), from, own);
        }
    });
    address
}

#[test]
fn hop_limit_and_class_reach_the_far_end_and_the_program() {
    if !world() {
        return;
    }
    let four = marking_far_end("127.0.0.1:0").port().to_string();
    let six = marking_far_end("[::1]:0").port().to_string();
    let program = "
import socket, struct, sys
IP, V6 = socket.IPPROTO_IP, socket.IPPROTO_IPV6
def ask(s, to, options=[]):
    s.settimeout(5)
    s.sendmsg([b'x'], [(level, kind, struct.pack('=i', value)) for level, kind, value in options], \
    0, to)
    data, control, _, _ = s.recvmsg(99, 999)
    print(data, sorted((level, kind, value[0]) for level, kind, value in control))
four, six = ('127.0.0.1', int(sys.argv[1])), ('::1', int(sys.argv[2]))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ask(s, four)
ask(s, four, [(IP, socket.IP_TTL, 5), (IP, socket.IP_TOS, 0x28)])
s.setsockopt(IP, socket.IP_TTL, 9); s.setsockopt(IP, socket.IP_TOS, 0x10)
s.setsockopt(IP, 12, 1); s.setsockopt(IP, 13, 1)
ask(s, four)
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
ask(s, six)
ask(s, six, [(V6, socket.IPV6_HOPLIMIT, 5), (V6, socket.IPV6_TCLASS, 0x28)])
s.setsockopt(V6, socket.IPV6_UNICAST_HOPS, 9); s.setsockopt(V6, socket.IPV6_TCLASS, 0x10)
s.setsockopt(V6, socket.IPV6_RECVHOPLIMIT, 1); s.setsockopt(V6, socket.IPV6_RECVTCLASS, 1)
ask(s, six)
";
    let plain = says_the_same(program, &[&four, &six]);
    assert!(plain.contains("b'5 40'") && plain.contains(", 33)"), "{plain}");
}

#[test]
fn the_error_queue_has_the_undelivered_datagram() {
    if !world() {
        return;
    }
    let program = "
import socket
for family, host, option in (socket.AF_INET, '127.0.0.1', (0, 11)), (socket.AF_INET6, '::1', (41, \
25)):
    closed = socket.socket(family, socket.SOCK_DGRAM); closed.bind((host, 0))
    at = closed.getsockname(); closed.close()
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(*option, 1); s.settimeout(5)
    s.sendto(b'this', at)
    try: s.recv(9)
    except OSError as e: print(e.errno)
    data, _, flags, to = s.recvmsg(99, 999, 0x2000)
    print(data, to[0], to[1] == at[1])
";
    let plain = says_the_same(program, &[]);
    assert!(plain.starts_with("111\nb'this' 127.0.0.1 True\n111\nb'this' ::1 True"), "{plain}");
}

#[test]
fn the_cost_of_a_socket_does_not_grow_with_their_number() {
    if !world() {
        return;
    }
    let program = "
import resource, socket, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
took, kept = [], []
for n in range(8):
    began = time.monotonic()
    for _ in range(100):
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('127.0.0.1', 0)); \
        kept.append(s)
    took.append(time.monotonic() - began)
print(min(took[:3]), min(took[-3:]))
";
    for via in VIAS {
        let output = output(&[DELAY, via, "--", "python3", "-c", program]);
        let said = text(&output.stdout);
        let times: Vec<f64> = said.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [first, last] = times[..] else { panic!("{via} {output:?}") };
        assert!(last < 3.0 * first, "{via}: a hundred took {first} s, and then {last} s");
    }
}
