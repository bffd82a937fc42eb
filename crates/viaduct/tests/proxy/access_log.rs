//! Access log of a proxy: the contents of its lines, and when they are written.

use super::*;

/// Starts a proxy on the hop of `chain`, with a JSON log in `scratch`.
fn logging(chain: &Chain, scratch: &Scratch, words: &str) -> Proxy {
    let log = scratch.path().join("access.log").display().to_string();
    let log = ["--access-log", &log, "--access-log-format", "json"];
    let words: Vec<&str> = words.split_whitespace().chain(log).collect();
    Proxy::start(&chain.hops()[0], &words).unwrap()
}

/// Lines of the log in `scratch`.
pub(super) fn lines(scratch: &Scratch) -> Vec<Value> {
    let text = std::fs::read_to_string(scratch.path().join("access.log")).unwrap_or_default();
    // The last line may be incomplete.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Connects from the client to the hop's port.
fn connect(chain: &Chain, port: u16) -> std::io::Result<TcpStream> {
    let at = SocketAddr::from(([10, 1, 0, 2], port));
    chain.client().netns().enter(|| TcpStream::connect(at)).unwrap()
}

/// Stops a proxy as systemd does, and waits for its end.
fn terminate(mut proxy: Proxy) {
    let pid = Pid::from_raw(proxy.process().id().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    assert!(proxy.process().wait().unwrap().success());
}

#[test]
fn a_stopping_proxy_logs_its_last_flows_and_those_it_cuts() {
    let (chain, scratch) = (chain("delay=1ms"), Scratch::new().unwrap());
    let server: SocketAddr = (chain.server().v4(), PORT).into();
    let listen = || TcpListener::bind(server).unwrap();
    let listener = chain.server().netns().enter(listen).unwrap();
    let words = format!("--listen 10.1.0.2:7001 --to {server} --drain 200ms");
    let proxy = logging(&chain, &scratch, &words);
    let flow = || (connect(&chain, 7001).unwrap(), listener.accept().unwrap().0);
    let (mut cut, mut ended) = (flow(), flow());
    for (client, server) in [&mut cut, &mut ended] {
        echo(client, server);
    }
    drop(ended);
    terminate(proxy);
    let lines = lines(&scratch);
    let reasons: Vec<_> = lines.iter().map(|line| line["reason"].as_str()).collect();
    assert_eq!(reasons, [None, Some("the proxy stopped")], "{lines:?}");
    for line in lines {
        assert_eq!(line["status"], 200, "{line}");
        assert_eq!(line["request"], format!("CONNECT {server} TCP"), "{line}");
    }
}

#[test]
fn clients_refused_before_their_request_are_logged() {
    let chain = chain("delay=1ms");
    for (words, clients, status) in [
        ("--expect socks --allow-from 192.0.2.1/32", 1, 403),
        ("--expect option --allow-from 10.1.0.1/32", 1, 400),
        ("--expect socks --allow-from 10.1.0.1/32 --flows 1", 2, 503),
    ] {
        let scratch = Scratch::new().unwrap();
        let words = format!("--listen 10.1.0.2:7001 --allow-to 0.0.0.0/0 {words}");
        let proxy = logging(&chain, &scratch, &words);
        // A connection may be reset before its connect returns.
        let clients: Vec<_> = (0..clients).map(|_| connect(&chain, 7001)).collect();
        let logged = common::within(Duration::from_secs(5), || !lines(&scratch).is_empty());
        assert!(logged, "{words}: nothing was logged");
        let line = &lines(&scratch)[0];
        assert_eq!((&line["status"], &line["client"]), (&status.into(), &"10.1.0.1".into()));
        assert_eq!(line["request"], "CONNECT - TCP", "{line}");
        drop(clients);
        terminate(proxy);
    }
}
