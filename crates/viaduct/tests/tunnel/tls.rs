//! Tunnels over TLS, through a router that passes only TCP connections to port 443 that begin with
//! a ClientHello:
//!
//! ```text
//!   client ── near end ══ router ══ far end ── server
//!       10.1.0.0   10.2.0.0   10.3.0.0   10.4.0.0
//! ```

use std::process::Output;

use super::*;

/// Classifies each connection by its first payload bytes, in whichever packet they arrive.
const RULES: &str = "table inet fw {
    counter refused {}
    chain forward {
        type filter hook forward priority 0; policy drop;
        tcp dport 443 ct mark 2 drop
        tcp dport 443 ct mark 0 @ih,0,16 0x1603 ct mark set 1
        tcp dport 443 ct mark 0 @ih,0,16 != 0x1603 ct mark set 2 counter name refused drop
        tcp dport 443 accept
        tcp sport 443 ct state established accept
    }
}";
const FAR: &str = "--tunnel-listen [::]:443 --allow-to 10.4.0.2/32,fd00:4::2/128";
const NEAR: &str = "--intercept 0.0.0.0/0,::/0 --links 1";

struct Network {
    chain: Chain,
    keys: Scratch,
}

impl Network {
    fn new() -> Network {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let links: [LinkConfig; 4] = ["delay=2ms"; 4].map(|link| link.parse().unwrap());
        let chain = Chain::build(&links, 1, &Journal::new()).unwrap();
        chain.hops()[1].run("nft", &[RULES]).unwrap();
        Network { chain, keys: Scratch::new().unwrap() }
    }

    fn near(&self, options: &str, keys: [u8; 2]) -> Proxy {
        proxy(&self.chain.hops()[0], &format!("{NEAR} {options}"), &self.keys, keys)
    }

    fn far(&self, options: &str) -> Proxy {
        proxy(&self.chain.hops()[2], &format!("{FAR} {options}"), &self.keys, [2, 1])
    }

    /// Connections that the router has cut because they did not begin with a ClientHello.
    fn refused(&self) -> u64 {
        let router = &self.chain.hops()[1];
        let text = router.run("nft", &["list", "counter", "inet", "fw", "refused"]).unwrap();
        let packets = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        packets.unwrap().parse().unwrap()
    }

    fn listen(&self, ip: IpAddr) -> TcpListener {
        let listen = || TcpListener::bind(SocketAddr::new(ip, PORT)).unwrap();
        self.chain.server().netns().enter(listen).unwrap()
    }

    fn connect(&self, ip: IpAddr) -> TcpStream {
        let to = SocketAddr::new(ip, PORT);
        let connect = || TcpStream::connect_timeout(&to, Duration::from_secs(5)).unwrap();
        let stream = self.chain.client().netns().enter(connect).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// Sends `bytes` from the client to the server and back.
    fn exchange(&self, listener: &TcpListener, bytes: &[u8]) {
        let client = self.connect(listener.local_addr().unwrap().ip());
        common::there_and_back(client, listener.accept().unwrap().0, bytes);
    }

    /// Runs OpenSSL's client at the near end until the far end closes, for at most 8 s.
    fn openssl(&self, options: &str, says: &str) -> Output {
        let client = "timeout 8 openssl s_client -connect 10.3.0.2:443";
        let mut shell = self.chain.hops()[0].command("sh");
        shell.args(["-c", &format!("{says} | {client} {options} 2>&1")]).output().unwrap()
    }
}

#[test]
fn tls_passes_where_only_a_client_hello_does() {
    let network = Network::new();
    let _far = network.far("");
    // The router stops the records of a link over TCP.
    let to = "--tunnel 10.3.0.2:443";
    let tcp = network.near(&format!("--listen [::]:7001 --carrier tcp {to}"), [1, 2]);
    until("a link over TCP is stopped", || network.refused() > 0);
    assert!(!tcp.log().contains("is up"), "{}", tcp.log());
    drop(tcp);
    let near = format!("--listen [::]:7000 --carrier tls --server-name www.example.com {to}");
    let near = network.near(&near, [1, 2]);
    let refused = network.refused();
    for ip in network.chain.server().addresses() {
        let listener = network.listen(ip);
        for bytes in [1, 100_000, 5_000_000] {
            network.exchange(&listener, &random(bytes));
        }
    }
    assert_eq!(network.refused(), refused);
    assert!(near.log().contains("a link of the tunnel is up"), "{}", near.log());
    assert!(shown(&near).contains("tunnel to "), "{}", shown(&near));
}

#[test]
fn a_listener_for_tls_alone_has_no_other_port_and_refuses_unknown_sites() {
    let network = Network::new();
    let far = network.far("--carrier tls");
    let ports = network.chain.hops()[2].run("ss", &["-Htuln", "sport", "=", ":443"]).unwrap();
    assert!(ports.contains("tcp") && !ports.contains("udp"), "{ports}");
    let to = "--tunnel 10.3.0.2:443 --carrier tls";
    let unknown = network.near(&format!("--listen [::]:7001 {to}"), [3, 2]);
    let reason = "the far end does not know this site's public key";
    until("the reason is logged", || unknown.log().contains(reason));
    // An end with another key than expected.
    let other = network.near(&format!("--listen [::]:7002 {to}"), [1, 4]);
    let reason = "its key is not the one that is given as peer here";
    until("the reason is logged", || other.log().contains(reason));
    assert!(other.log().contains("or a device on the path decrypts TLS"), "{}", other.log());
    let log = far.log();
    assert!(is_calm(&log), "{log}");
}

#[test]
fn plain_tls_clients_get_a_complete_handshake_and_leave_nothing() {
    let network = Network::new();
    let mut far = network.far("--carrier tls");
    let pid = far.process().id();
    let before = descriptors(pid);
    // The far end closes at the request, because it is not a message of the sites' handshake.
    let asked = network.openssl("-servername www.example.com -alpn h2,http/1.1", "echo GET /");
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(asked.status.success(), "{said}");
    for part in ["New, TLSv1.3", "self-signed certificate", "CN = viaduct", "ASN1 OID: prime256v1"]
    {
        let text = if part.starts_with("ASN1") { certificate(&said) } else { said.to_string() };
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let old = network.openssl("-tls1_2", "echo");
    let said = String::from_utf8_lossy(&old.stdout);
    assert!(said.contains("alert protocol version"), "{said}");
    // Clients that send nothing, and disconnect.
    let client = "sleep 1 | openssl s_client -connect 10.3.0.2:443 >/dev/null 2>&1";
    let clients = format!("for n in $(seq 20); do {client} & done; wait");
    network.chain.hops()[0].run("sh", &["-c", &clients]).unwrap();
    until("all are closed", || descriptors(pid) <= before);
    let near = "--listen [::]:7000 --carrier tls --tunnel 10.3.0.2:443";
    let _near = network.near(near, [1, 2]);
    network.exchange(&network.listen("10.4.0.2".parse().unwrap()), b"served");
    assert!(is_calm(&far.log()), "{}", far.log());
}

/// Returns whether a far end has logged nothing but the warning about the mode of its key file.
fn is_calm(log: &str) -> bool {
    !log.contains("ERROR") && log.matches("WARN").count() == 1
}

/// Text form of the certificate that OpenSSL's client has printed.
fn certificate(said: &str) -> String {
    let mut openssl = Command::new("openssl");
    openssl.args(["x509", "-noout", "-text"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut openssl = openssl.spawn().unwrap();
    openssl.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
    String::from_utf8(openssl.wait_with_output().unwrap().stdout).unwrap()
}
