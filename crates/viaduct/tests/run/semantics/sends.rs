//! Sends on a stream, by calls that are meant for datagrams.

use super::super::{output, text};
use super::CHAIN;

/// Sends two long messages on a connected stream by one `sendmmsg`. Prints its result and the
/// lengths, and how much of each message has arrived. Then opens a stream by a send that does not
/// wait, on a socket that does, and prints the error.
const PROGRAM: &str = "
import ctypes, errno, socket, struct, threading
libc = ctypes.CDLL(None, use_errno=True)
listener = socket.create_server(('127.0.0.1', 0))
arrived = {}
def read():
    stream = listener.accept()[0]
    while data := stream.recv(1 << 16):
        for letter in b'ab':
            arrived[letter] = arrived.get(letter, 0) + data.count(letter)
reader = threading.Thread(target=read)
reader.start()
LENGTH = 100000
pieces = [ctypes.create_string_buffer(letter * LENGTH) for letter in (b'a', b'b')]
vectors = [struct.pack('PN', ctypes.addressof(piece), LENGTH) for piece in pieces]
vectors = [ctypes.create_string_buffer(vector) for vector in vectors]
at = map(ctypes.addressof, vectors)
heads = b''.join(struct.pack('PIPNPNiIiI', 0, 0, of, 1, 0, 0, 0, 0, 0, 0) for of in at)
heads = ctypes.create_string_buffer(heads, 128)
stream = socket.create_connection(listener.getsockname())
sent = libc.sendmmsg(stream.fileno(), heads, 2, 0)
lengths = [struct.unpack_from('I', heads, 64 * n + 56)[0] for n in range(2)]
stream.close()
reader.join()
print(sent, *lengths, *(arrived[letter] for letter in b'ab'))
FASTOPEN = 0x20000000
stream = socket.socket()
try:
    print(stream.sendto(b'said', FASTOPEN | socket.MSG_DONTWAIT, listener.getsockname()))
except OSError as error:
    print(errno.errorcode[error.errno])
";

#[test]
fn a_stream_takes_long_messages_completely_and_a_non_blocking_send_does_not_wait() {
    let expected = "2 100000 100000 100000 100000\nEINPROGRESS\n";
    let plain = std::process::Command::new("python3").args(["-c", PROGRAM]).output().unwrap();
    assert_eq!(text(&plain.stdout), expected, "without viaduct");
    for via in ["cgroup", "seccomp", "preload"] {
        // With this rule the master has to check each datagram.
        let options = [CHAIN, "--via", via, "--refuse", "udp:9"];
        let output = output(&[&options[..], &["--", "python3", "-c", PROGRAM]].concat());
        assert_eq!(text(&output.stdout), expected, "{via}: {}", text(&output.stderr));
    }
}
