//! Resets: a proxy forwards them immediately, but after the data that was sent before them.

use super::*;

fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Resets a flow at its end `dying`, which has not read the data sent to it. Returns the time until
/// the end `living` sees the reset.
fn takes(mut living: TcpStream, dying: TcpStream) -> Duration {
    fill(&mut living);
    living.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let begun = Instant::now();
    reset(dying);
    let error = living.read(&mut [0; 10]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    begun.elapsed()
}

#[test]
fn a_reset_is_forwarded_without_waiting_for_unread_data() {
    for more in [&[][..], &["--handler", "latency:delay=1ms"]] {
        let chain = chain("delay=1ms");
        let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0"];
        let proxy = Proxy::start(&chain.hops()[0], &[&path[..], more].concat()).unwrap();
        let world = World { proxy, chain };
        let ip = world.addresses()[0];
        let listener = world.listen(ip);
        let mut quickest = [Duration::MAX; 2];
        for _ in 0..3 {
            let client = world.connect(ip).unwrap();
            let (server, _) = listener.accept().unwrap();
            quickest[0] = quickest[0].min(takes(client, server));
            let client = world.connect(ip).unwrap();
            let (server, _) = listener.accept().unwrap();
            quickest[1] = quickest[1].min(takes(server, client));
        }
        // This took a second when the proxy waited to deliver data to the end that was reset.
        let most = Duration::from_millis(700);
        assert!(quickest.iter().all(|took| *took < most), "{more:?}: {quickest:?}");
    }
}

/// Returns the number of bytes read before a reset.
fn before_reset(mut stream: TcpStream) -> usize {
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let (mut bytes, mut buffer) = (0, [0; 4096]);
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => panic!("end of stream instead of a reset after {bytes} bytes"),
            Ok(read) => bytes += read,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset, "after {bytes} bytes");
                return bytes;
            }
        }
    }
}

#[test]
fn data_before_an_immediate_reset_arrives() {
    const FLOWS: usize = 60;
    let ways: [&[&str]; 4] = [
        &["--listen", "[::]:7000", "--intercept", "0.0.0.0/0"],
        &["--listen", "[::]:7000", "--intercept", "0.0.0.0/0", "--forward", "late"],
        &["--listen", "[::]:7000", "--intercept", "0.0.0.0/0", "--handler", "latency:delay=1ms"],
        &[
            "--listen",
            "10.1.0.2:7000",
            "--expect",
            "connect",
            "--allow-from",
            "::/0,0.0.0.0/0",
            "--allow-to",
            "0.0.0.0/0",
        ],
    ];
    for way in ways {
        let chain = chain("delay=1ms");
        let proxy = Proxy::start(&chain.hops()[0], way).unwrap();
        let world = World { proxy, chain };
        let ip = world.addresses()[0];
        let listener = world.listen(ip);
        let asks = way.contains(&"connect");
        let head = format!("CONNECT {ip}:{PORT} HTTP/1.1\r\n\r\n");
        let to = if asks { "10.1.0.2:7000".parse().unwrap() } else { SocketAddr::new(ip, PORT) };
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let server = thread::spawn(move || {
            (0..FLOWS).map(|_| before_reset(listener.accept().unwrap().0)).collect::<Vec<_>>()
        });
        for _ in 0..FLOWS {
            let mut client = world.chain.client().netns().enter(connect).unwrap();
            let words = if asks { head.as_bytes() } else { b"" };
            client.write_all(&[words, &[7; 100]].concat()).unwrap();
            reset(client);
        }
        assert_eq!(server.join().unwrap(), [100; FLOWS], "{way:?}");
    }
}
