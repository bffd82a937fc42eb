//! Requests, refusals and limits.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Instant;

use viaduct_sys::process::Process;

use super::common::{free_port, until};
use super::{Dash, VIADUCT, more, scratch, serve};

#[test]
fn the_page_forbids_foreign_code_and_refuses_foreign_names_and_methods() {
    let dir = scratch("refuse");
    let dash = Dash::start(&dir, "127.0.0.1", &[]);
    let page = dash.get("/").to_ascii_lowercase();
    assert!(page.starts_with("http/1.1 200 "), "{page}");
    let policy = "content-security-policy: default-src 'none'; script-src 'self'; \
                  style-src 'self'; connect-src 'self'; img-src 'self'";
    for header in [policy, "x-content-type-options: nosniff", "referrer-policy: no-referrer"] {
        assert!(page.contains(header), "{header}: {page}");
    }
    assert!(!page.contains("access-control-"), "{page}");
    for path in ["/dash.js", "/dash.css", "/uplot.js", "/uplot.css", "/icon.svg"] {
        assert!(dash.get(path).starts_with("HTTP/1.1 200 "), "{path}");
        assert!(page.contains(path.trim_start_matches('/')) || path == "/", "{path}");
    }
    let cases = [
        ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
        ("GET /events HTTP/1.1\r\nHost: evil.example:7480\r\n\r\n", "421"),
        ("GET / HTTP/1.0\r\n\r\n", "421"),
        ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc", "405"),
        ("DELETE /events HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
        ("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
        ("GET /events?subject=x HTTP/1.1\r\nHost: localhost\r\n\r\n", "400"),
        ("HEAD /events HTTP/1.1\r\nHost: localhost\r\n\r\n", "200"),
        ("not http\r\n\r\n", "400"),
    ];
    for (request, status) in cases {
        let answer = dash.answer(request);
        assert_eq!(answer.split(' ').nth(1), Some(status), "{request}: {answer}");
    }
    let head = dash.answer("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head.ends_with("\r\n\r\n") && !head.contains("<html"), "{head}");
    let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(9_000));
    assert!(dash.answer(&long).starts_with("HTTP/1.1 431 "));
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn slow_clients_are_disconnected_and_do_not_exclude_viewers() {
    let dir = scratch("slow");
    let dash = Dash::start(&dir, "127.0.0.1", &[]);
    let begun = Instant::now();
    let slow: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = dash.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
            stream
        })
        .collect();
    let viewers: Vec<_> = (0..16).map(|_| dash.watch()).collect();
    let refused = dash.get("/events").to_ascii_lowercase();
    assert!(refused.starts_with("http/1.1 503 ") && refused.contains("retry-after:"), "{refused}");
    assert!(dash.get("/").starts_with("HTTP/1.1 200 "), "the page is served to all");
    for mut stream in slow {
        // The server may answer before it closes.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let took = begun.elapsed();
    assert!((4..10).contains(&took.as_secs()), "slow clients were closed after {took:?}");
    // The viewers are still served. When one disconnects, another is accepted.
    for (mut stream, _) in viewers {
        more(&mut stream);
    }
    until("there is room for a viewer", || !dash.watch().1.contains(" 503 "));
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn services_appear_and_end_and_late_viewers_see_earlier_values() {
    let dir = scratch("services");
    let dash = Dash::start(&dir, "127.0.0.1", &[]);
    assert!(dash.watch().1.contains("no service runs in"));
    let (server, port) = serve(&dir, &dir);
    let request = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    };
    let (mut early, mut text) = dash.watch();
    let name = format!("\"name\":\"serve-{port}\"");
    // Sum of the values of the series `requests` in all events.
    let requests = |text: &str| {
        let values = text.split("\"requests\":[").skip(1).filter_map(|rest| rest.split(']').next());
        let values = values.flat_map(|values| values.split(','));
        values.filter_map(|value| value.parse::<f64>().ok()).sum::<f64>()
    };
    until("the server and its requests are shown", || {
        request();
        text += &more(&mut early);
        text.contains(&name) && requests(&text) > 0.0
    });
    drop(server);
    let mut ended = String::new();
    until("the page says that the server has ended", || {
        ended += &more(&mut early);
        ended.contains("it left its socket behind")
    });
    let (_, late) = dash.watch();
    assert!(requests(&late) > 0.0, "{late}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn other_hosts_need_tls_and_the_token() {
    let dir = scratch("tls");
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let (cert, key, token) = (file("cert.pem"), file("key.pem"), file("token"));
    fs::write(&token, "0123456789abcdef\n").unwrap();
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
    openssl.args(["-nodes", "-days", "2", "-subj", "/CN=rome.example"]);
    openssl.args(["-addext", "subjectAltName=DNS:rome.example", "-keyout", &key, "-out", &cert]);
    assert!(openssl.output().unwrap().status.success());
    let options = ["--token-file", &token, "--tls-cert", &cert, "--tls-key", &key];
    let options = [&options[..], &["--host", "rome.example"]].concat();
    let dash = Dash::start(&dir, "0.0.0.0", &options);
    let port = dash.at.port();
    let curl = |more: &[&str]| {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", &cert]);
        curl.args(["--resolve", &format!("rome.example:{port}:127.0.0.1")]).args(more);
        let output = curl.arg(format!("https://rome.example:{port}/")).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(curl(&[]), "401");
    assert_eq!(curl(&["-u", "me:0123456789abcdef"]), "200");
    assert_eq!(curl(&["-u", "me:0123456789abcdeX"]), "401");
    assert_eq!(curl(&["-u", "me:0123456789abcdef", "-H", "Host: evil.example"]), "421");
    drop(dash);

    let mut open = Command::new(VIADUCT);
    open.args(["dash", "--listen", "0.0.0.0:7480", "--run-dir"]).arg(&dir);
    let refused = open.output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("--token-file, --tls-cert"), "{why}");
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_member_of_the_sockets_group_needs_no_root() {
    let dir = scratch("group");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let port = free_port();
    // Starts the server as a systemd unit with `Group=` and `UMask=` does.
    let mut command = Command::new("sh");
    let script = "umask 007; exec setpriv --regid 54321 --clear-groups \"$@\"";
    command.args(["-c", script, "sh", VIADUCT, "serve"]).arg(&dir).arg("--run-dir").arg(&dir);
    command.args(["--listen", &format!("127.0.0.1:{port}")]);
    let _server = Process::spawn(command).unwrap();
    let socket = dir.join(format!("serve-{port}.sock"));
    until("the server is up", || UnixStream::connect(&socket).is_ok());
    for (group, is_member) in [("54321", true), ("54323", false)] {
        let user = ["setpriv", "--reuid", "54322", "--regid", group, "--clear-groups", VIADUCT];
        let dash = Dash::start_by(&user, &dir, "127.0.0.1", &[]);
        let (_, list) = dash.watch();
        assert!(list.contains(&format!("serve-{port}")), "{list}");
        assert_eq!(!list.contains("may read it"), is_member, "{list}");
    }
    fs::remove_dir_all(&dir).unwrap();
}
