//! Events other than data that a relay forwards: TCP's urgent byte, and the loss of an end.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_oobinline, set_tcp_cork};
use rustix::net::{RecvFlags, recv};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use viaduct_lab::binary::use_binary;
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal};
use viaduct_proto::link::LinkConfig;
use viaduct_proto::split::proxy::{Addresses, emit};
use viaduct_sys::socket::urgent;

use crate::common::{fill, rest, until};

/// A client and a server, connected through a proxy on the path.
struct World {
    client: TcpStream,
    server: TcpStream,
    _proxy: Proxy,
    chain: Chain,
}

impl World {
    fn new(more: &[&str]) -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let link: LinkConfig = "delay=2ms".parse().unwrap();
        let chain = Chain::build(&[link.clone(), link], 1, &Journal::new()).unwrap();
        let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0"];
        let proxy = Proxy::start(&chain.hops()[0], &[&path, more].concat()).unwrap();
        let to = SocketAddr::new(chain.server().v4().into(), 9000);
        let listener = chain.server().netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
        let client = chain.client().netns().enter(|| TcpStream::connect(to).unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        }
        World { client, server, _proxy: proxy, chain }
    }
}

/// Reads as many bytes as `expected` has, and asserts that they are equal.
fn reads(stream: &mut impl Read, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(got, expected);
}

#[test]
fn an_urgent_byte_arrives_as_urgent() {
    let World { client, server, _proxy, chain: _chain } = World::new(&[]);
    for (mut from, mut to) in [(&client, &server), (&server, &client)] {
        from.write_all(b"before").unwrap();
        assert!(urgent::give(from, b'!').unwrap());
        from.write_all(b"behind").unwrap();
        reads(&mut to, b"before");
        // The urgent byte is read with MSG_OOB.
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut byte = [0];
        while recv(to, &mut byte[..], RecvFlags::OOB).is_err() {
            assert!(Instant::now() < deadline, "no urgent byte");
        }
        assert_eq!(&byte, b"!");
        reads(&mut to, b"behind");
    }
}

#[test]
fn an_urgent_byte_after_the_request_keeps_its_position() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link: LinkConfig = "delay=2ms".parse().unwrap();
    let chain = Chain::build(&[link.clone(), link], 1, &Journal::new()).unwrap();
    let any = ["--allow-from", "10.0.0.0/8", "--allow-to", "10.0.0.0/8"];
    let hop = ["--listen", "[::]:7000", "--expect", "proxy,connect"];
    let proxy = Proxy::start(&chain.hops()[0], &[&hop[..], &any].concat()).unwrap();
    let to = SocketAddr::new(chain.server().v4().into(), 9000);
    let listener = chain.server().netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
    let hop: SocketAddr = "10.1.0.2:7000".parse().unwrap();
    let source = "10.9.9.9:1".parse().unwrap();
    let header = emit(&Addresses::new(source, to));
    let request = format!("ONNECT {to} HTTP/1.1\r\n\r\n").into_bytes();
    let dial = || {
        let client = chain.client().netns().enter(|| TcpStream::connect(hop).unwrap()).unwrap();
        // Corked, so that all data leaves in one segment.
        set_tcp_cork(&client, true).unwrap();
        client
    };
    let take = || {
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        set_socket_oobinline(&server, true).unwrap();
        server
    };
    let mut client = dial();
    client.write_all(&[&header[..], b"before"].concat()).unwrap();
    assert!(urgent::give(&client, b'!').unwrap());
    client.write_all(b"behind").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = take();
    reads(&mut server, b"before");
    let deadline = Instant::now() + Duration::from_secs(5);
    while !urgent::is_next(&server).unwrap() {
        assert!(Instant::now() < deadline, "no urgent byte");
        thread::sleep(Duration::from_millis(1));
    }
    reads(&mut server, b"!behind");
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    // In the request that names the destination, an urgent byte is read like any other byte.
    let mut client = dial();
    assert!(urgent::give(&client, b'C').unwrap());
    client.write_all(&[&request[..], b"behind"].concat()).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = take();
    reads(&mut server, b"behind");
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    drop(proxy);
}

#[test]
fn an_urgent_byte_before_the_end_is_not_taken_for_the_end() {
    let World { client, mut server, _proxy, chain: _chain } = World::new(&[]);
    set_socket_oobinline(&server, true).unwrap();
    let reader = thread::spawn(move || {
        let mut got = Vec::new();
        server.read_to_end(&mut got).map(|_| got).unwrap()
    });
    let mut data = Vec::new();
    for n in 0..100 {
        (&client).write_all(&[n; 1000]).unwrap();
        while !urgent::give(&client, n).unwrap() {
            thread::yield_now();
        }
        data.extend([n; 1001]);
    }
    client.shutdown(Shutdown::Write).unwrap();
    let got = reader.join().unwrap();
    assert!(got == data, "{} of {} bytes", got.len(), data.len());
}

#[test]
fn a_flow_for_which_no_pipe_can_be_created_waits() {
    let World { mut client, mut server, _proxy: mut proxy, chain: _chain } = World::new(&[]);
    let pid = Pid::from_raw(proxy.process().id().cast_signed());
    let limit = getrlimit(Resource::Nofile);
    prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), ..limit }).unwrap();
    // The proxy has at most one pipe. These bytes occupy it, because the server does not read.
    let written = fill(&mut client);
    server.write_all(b"waits").unwrap();
    until("a warning is logged", || proxy.log().contains("cannot create a pipe"));
    prlimit(pid, Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    reads(&mut client, b"waits");
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rest(&mut server).len(), written);
}

#[test]
fn a_silently_lost_client_resets_the_server() {
    let World { client, mut server, _proxy, chain } =
        World::new(&["--keep-alive", "1s", "--dead-after", "4s"]);
    chain.client().ip(&["link set eth0 down".into()]).unwrap();
    let begun = Instant::now();
    let error = server.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    drop(client);
}
