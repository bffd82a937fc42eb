//! Other users of this machine: they can find the abstract sockets of a run, but get no access to
//! its chain.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Stdio};

use rustix::net::{AddressFamily, SocketType};
use viaduct_proto::wrap::aware::{Ask, MAX_MESSAGE};
use viaduct_proto::wrap::wire::{ANSWER, Answer, Request, WELCOME};
use viaduct_proto::wrap::{SECRET, Secret};
use viaduct_sys::socket::seqpacket;

use super::common::as_user;
use super::{CHAIN, VIADUCT, far_end, output, text};

const OTHER_USER: u32 = 65_534;

/// A run of root, whose program has printed its environment and waits.
struct Run {
    child: Child,
    /// Name and secret of the socket for the preload library, and of the control socket for
    /// programs that use their handlers.
    sockets: [(String, Secret); 2],
}

impl Run {
    fn new() -> Run {
        let mut command = std::process::Command::new("timeout");
        command.args(["--signal=KILL", "30", VIADUCT, "run", "--via", "preload", CHAIN, "--"]);
        command.args(["sh", "-c", "echo $VIADUCT_WRAP; echo $VIADUCT_CONTROL; cat"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut next = || {
            let line = lines.next().unwrap().unwrap();
            let (name, secret) =
                (line.split(';').next().unwrap(), line.rsplit(';').next().unwrap());
            (name.to_owned(), Secret::parse(secret.as_bytes()).unwrap())
        };
        let sockets = [next(), next()];
        Run { child, sockets }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn socket(kind: SocketType) -> OwnedFd {
    rustix::net::socket(AddressFamily::INET, kind, None).unwrap()
}

/// Returns the answer of the abstract socket `name`; empty if it gives none.
fn ask(name: &str, pieces: &[&[u8]], descriptor: Option<&OwnedFd>) -> Vec<u8> {
    let socket = seqpacket::connect(name).unwrap();
    let mut answer = vec![0; WELCOME.max(MAX_MESSAGE)];
    // The send fails if the listener has already rejected this peer.
    let _ = seqpacket::send(&socket, &pieces.concat(), descriptor.map(AsFd::as_fd));
    let length = seqpacket::receive(&socket, &mut answer).map_or(0, |(length, _)| length);
    answer.truncate(length);
    answer
}

#[test]
fn another_user_cannot_use_the_abstract_sockets_of_a_run() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for two users");
    }
    let far = far_end("127.0.0.1:0");
    let run = Run::new();
    let [(library, secret), (control, theirs)] = run.sockets.clone();
    let all = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(all.contains(&library) && all.contains(&control), "a user does not find them");
    let connect = Request::Connect { to: far, wait: true }.emit();
    let hello = Request::Hello.emit();
    let watch = Ask::Watch.emit().unwrap();
    let count = Ask::Control { to: "latency", request: b"?" }.emit().unwrap();
    let (name, other) = (library.clone(), control);
    as_user(OTHER_USER, move || {
        let tcp = socket(SocketType::STREAM);
        // Without the secret, with a wrong one, and with the right one, which another user
        // cannot know.
        for sealed in [&[][..], &[0; SECRET], secret.bytes()] {
            for request in [&hello[..], &connect] {
                assert!(ask(&name, &[sealed, request], Some(&tcp)).is_empty(), "{sealed:?}");
            }
        }
        for sealed in [&[][..], &[0; SECRET], theirs.bytes()] {
            for request in [&watch[..], &count] {
                assert!(ask(&other, &[sealed, request], Some(&tcp)).is_empty(), "{sealed:?}");
            }
        }
        assert!(rustix::net::getpeername(&tcp).is_err());
    });
    // Permitted peers get an answer, so the socket works.
    let answer = ask(&library, &[secret.bytes(), &Request::Hello.emit()], None);
    assert!(matches!(Answer::parse(&answer), Some(Answer::Welcome(_))));
    assert!(ask(&library, &[&[0; SECRET], &Request::Hello.emit()], None).is_empty());
}

#[test]
fn only_tcp_sockets_are_accepted_as_flows() {
    let far: SocketAddr = far_end("127.0.0.1:0");
    let run = Run::new();
    let (name, secret) = &run.sockets[0];
    let connect = Request::Connect { to: far, wait: false }.emit();
    let said = |socket: Option<OwnedFd>| {
        let answer = ask(name, &[secret.bytes(), &connect], socket.as_ref());
        assert_eq!(answer.len(), ANSWER);
        match Answer::parse(&answer) {
            Some(Answer::Done(errno)) => errno.0,
            _ => panic!("{answer:?}"),
        }
    };
    let unix = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    // EPROTONOSUPPORT, ENFILE if there is no descriptor, and EINPROGRESS.
    assert_eq!(said(Some(socket(SocketType::DGRAM))), 93);
    assert_eq!(said(Some(unix)), 93);
    assert_eq!(said(None), 23);
    assert_eq!(said(Some(socket(SocketType::STREAM))), 115);
}

#[test]
fn a_program_that_changes_its_user_is_served() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root for another user");
    }
    let far = far_end("127.0.0.1:0").to_string();
    let program = "
import encodings.idna, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
host, port = sys.argv[1].rsplit(':', 1)
s = socket.create_connection((host, int(port)), 10)
s.sendall(b'hello\\n'); print(s.makefile().readline())
";
    let words = ["--via", "preload", "--report", CHAIN, "--", "python3", "-c", program, &far];
    let said = output(&words);
    assert!(text(&said.stdout).starts_with("hello"), "{said:?}");
    assert!(text(&said.stderr).contains("1 passed the handlers"), "{said:?}");
}
