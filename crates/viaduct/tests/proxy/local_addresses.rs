//! Addresses of the router itself: even if a proxy on the router intercepts everything, its
//! addresses, services and firewall rules work as without the proxy.

use std::io;

use super::*;

const EVERYTHING: [&str; 4] = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0,::/0"];
/// Ports of the router: a service, a service behind the router's firewall, and a closed port.
const SERVICE: u16 = 8080;
const GUARDED: u16 = 8081;
const CLOSED: u16 = 8082;

/// Starts a server at all addresses of the router. It sends each client the client's own address.
fn serve(router: &Node, port: u16) {
    let listen = || TcpListener::bind(("::", port)).unwrap();
    let listener = router.netns().enter(listen).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let peer = stream.peer_addr().map(|at| at.ip().to_canonical().to_string());
            let _ = stream.write_all(peer.unwrap_or_default().as_bytes());
        }
    });
}

/// The router's addresses.
fn own_addresses(router: &Node) -> Vec<IpAddr> {
    let lines = router.run("ip", &["-o", "addr", "show", "scope", "global"]).unwrap();
    let addresses = lines.lines().filter_map(|line| line.split_whitespace().nth(3));
    addresses.map(|net| net.split('/').next().unwrap().parse().unwrap()).collect()
}

/// Returns whether the router's service at `ip` has seen the client's own address.
fn is_seen(chain: &Chain, ip: IpAddr, port: u16) -> Result<bool, ErrorKind> {
    let millis = if port == GUARDED { 150 } else { 5_000 };
    let connect = || -> io::Result<bool> {
        let to = SocketAddr::new(ip, port);
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_millis(millis))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut seen = String::new();
        stream.read_to_string(&mut seen)?;
        Ok(seen == stream.local_addr()?.ip().to_string())
    };
    chain.client().netns().enter(connect).unwrap().map_err(|error| error.kind())
}

/// Adds an address of each family to the router, and routes at the client.
fn add_addresses(chain: &Chain) {
    let router = &chain.hops()[0];
    router
        .ip(&["addr add 198.18.0.1/32 dev lo".into(), "addr add fd00:99::1/128 dev lo".into()])
        .unwrap();
    let routes = [
        "route add 198.18.0.1 via 10.1.0.2".to_owned(),
        "route add fd00:99::1 via fd00:1::2".to_owned(),
    ];
    chain.client().ip(&routes).unwrap();
}

#[test]
fn connections_to_the_router_itself_are_not_intercepted() {
    let chain = chain("delay=1ms");
    let router = &chain.hops()[0];
    serve(router, SERVICE);
    serve(router, GUARDED);
    let guard = format!(
        "add table inet guard; \
         add chain inet guard input {{ type filter hook input priority 0; }}; \
         add rule inet guard input tcp dport {GUARDED} drop"
    );
    router.run("nft", &[&guard[..]]).unwrap();
    for (n, more) in
        [&[][..], &["--keep-client"], &["--accept", "after-connect"]].into_iter().enumerate()
    {
        let proxy = Proxy::start(router, &[&EVERYTHING[..], more].concat()).unwrap();
        if n == 0 {
            add_addresses(&chain);
        }
        let addresses = own_addresses(router);
        assert!(addresses.len() >= 6, "{addresses:?}");
        for ip in addresses {
            assert_eq!(is_seen(&chain, ip, SERVICE), Ok(true), "{ip} {more:?}");
            let closed = is_seen(&chain, ip, CLOSED);
            assert_eq!(closed, Err(ErrorKind::ConnectionRefused), "{ip} {more:?}");
            let guarded = is_seen(&chain, ip, GUARDED);
            assert_eq!(guarded, Err(ErrorKind::TimedOut), "{ip} {more:?}");
        }
        // Forwarded flows are intercepted.
        let to = SocketAddr::new(chain.server().v4().into(), PORT);
        let listener = chain.server().netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let _client = chain.client().netns().enter(connect).unwrap();
        let _server = listener.accept().unwrap();
        let is_counted = || rules::status(&proxy)["counters"]["opened"] == 1;
        common::until(&format!("a flow is counted, {more:?}"), is_counted);
    }
}
