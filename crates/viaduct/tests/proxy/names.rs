//! Host names in requests of clients.

use super::*;

#[test]
fn each_address_of_a_name_is_tried_and_a_trailing_dot_is_ignored() {
    let chain = chain("delay=1ms");
    let router = &chain.hops()[0];
    let files = [("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")];
    let words = "--listen 10.1.0.2:7001 --expect connect --allow-from 10.1.0.1/32 \
                 --allow-to 127.0.0.0/8,::1/128";
    let words: Vec<&str> = words.split_whitespace().collect();
    let _proxy = Proxy::with_files(router, &files, &words).unwrap();
    // Nothing listens at ::1, which is the first address.
    let listen = || TcpListener::bind(("127.0.0.1", PORT)).unwrap();
    let listener = router.netns().enter(listen).unwrap();
    let connect = || TcpStream::connect("10.1.0.2:7001").unwrap();
    for name in ["localhost", "LOCALHOST."] {
        let mut client = chain.client().netns().enter(connect).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let words = format!("CONNECT {name}:{PORT} HTTP/1.1\r\n\r\nthere");
        client.write_all(words.as_bytes()).unwrap();
        let mut head = [0; 13];
        client.read_exact(&mut head).unwrap();
        assert_eq!(&head, b"HTTP/1.1 200 ", "{name}");
        let mut got = [0; 5];
        listener.accept().unwrap().0.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"there", "early data goes to the address that answers");
    }
}

#[test]
fn data_after_a_request_waits_until_the_name_is_resolved() {
    let chain = chain("delay=1ms");
    let router = &chain.hops()[0];
    let files = [("/etc/hosts", "127.0.0.1 localhost\n")];
    let words = "--listen 10.1.0.2:7001 --expect connect --allow-from 10.1.0.1/32 \
                 --allow-to 127.0.0.0/8";
    let words: Vec<&str> = words.split_whitespace().collect();
    let _proxy = Proxy::with_files(router, &files, &words).unwrap();
    let listen = || TcpListener::bind(("127.0.0.1", PORT)).unwrap();
    let listener = router.netns().enter(listen).unwrap();
    let connect = || TcpStream::connect("10.1.0.2:7001").unwrap();
    let data = vec![7; 20_000];
    for round in 0..20 {
        let mut client = chain.client().netns().enter(connect).unwrap();
        let timeout = Some(Duration::from_secs(10));
        client.set_read_timeout(timeout).unwrap();
        // Alternately more data than the longest request, and less. The end of the stream follows
        // the data.
        let length = if round % 2 == 0 { data.len() } else { 5 };
        let words = format!("CONNECT localhost:{PORT} HTTP/1.1\r\n\r\n").into_bytes();
        client.write_all(&[&words[..], &data[..length]].concat()).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (mut server, mut got) = (listener.accept().unwrap().0, Vec::new());
        server.set_read_timeout(timeout).unwrap();
        server.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), length, "round {round}");
        server.write_all(b"answer").unwrap();
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200 ") && answer.ends_with(b"answer"), "{round}");
    }
}
