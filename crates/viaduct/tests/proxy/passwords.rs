//! Clients that authenticate with a right or a wrong password, by HTTP CONNECT and SOCKS5.

use super::*;

/// Starts a proxy that requires a name and a password.
fn guarded(chain: &Chain, scratch: &Scratch) -> Proxy {
    let file = scratch.write("password", "me:pass:word\n").unwrap().display().to_string();
    let words = "--listen 10.1.0.2:7001 --expect socks,connect --allow-from 10.1.0.1/32 \
                 --allow-to 10.2.0.0/30 --password-file";
    let log = scratch.path().join("access.log").display().to_string();
    let log = ["--access-log", &log, "--access-log-format", "json"];
    let words: Vec<&str> = words.split_whitespace().chain([&file[..]]).chain(log).collect();
    Proxy::start(&chain.hops()[0], &words).unwrap()
}

/// Waits until the access log has `lines` lines, and returns them.
fn logged(scratch: &Scratch, lines: usize) -> Vec<Value> {
    let read = || Some(access_log::lines(scratch)).filter(|all| all.len() >= lines);
    common::within_some(Duration::from_secs(5), read).expect("lines of the access log")
}

#[test]
fn curl_learns_the_authentication_method_and_uses_it_on_the_same_connection() {
    let chain = chain("delay=1ms");
    let _web = WebServer::start(chain.server(), 5_000, 1).unwrap();
    let scratch = Scratch::new().unwrap();
    let proxy = guarded(&chain, &scratch);
    let by = "--proxytunnel --proxy http://10.1.0.2:7001 --output /dev/null";
    let count = "--write-out %{size_download}-%{num_connects}";
    let got = curl(&chain, &format!("{by} {count} --proxy-anyauth --proxy-user me:pass:word"));
    assert_eq!(got.unwrap(), "5000-1", "both requests must use one connection");
    let counters = rules::status(&proxy)["counters"].clone();
    assert_eq!((&counters["accepted"], &counters["refused"]["denied"]), (&1.into(), &0.into()));
    let got = curl(&chain, &format!("{by} {count} --proxy-basic --proxy-user me:pass:word"));
    assert_eq!(got.unwrap(), "5000-1");
    let socks = "--socks5 10.1.0.2:7001 --output /dev/null --write-out %{size_download}";
    assert_eq!(curl(&chain, &format!("{socks} --proxy-user me:pass:word")).unwrap(), "5000");
    let server = format!("{}:8080", chain.server().v4());
    let lines = logged(&scratch, 3);
    for (line, protocol, version) in [
        (&lines[0], "http", "HTTP/1.1"),
        (&lines[1], "http", "HTTP/1.1"),
        (&lines[2], "socks5", "SOCKS5"),
    ] {
        assert_eq!((&line["client"], &line["user"]), (&"10.1.0.1".into(), &"me".into()), "{line}");
        assert_eq!((&line["status"], &line["protocol"]), (&200.into(), &protocol.into()), "{line}");
        assert_eq!(line["request"], format!("CONNECT {server} {version}"), "{line}");
        let (sent, received) = (line["sent"].as_u64(), line["received"].as_u64());
        assert!(sent > Some(5_000) && received > Some(10), "{line}");
    }
}

#[test]
fn a_wrong_password_is_counted_and_logged_with_its_client() {
    let chain = chain("delay=1ms");
    let scratch = Scratch::new().unwrap();
    let proxy = guarded(&chain, &scratch);
    let wrong = "--proxytunnel --proxy http://10.1.0.2:7001 --proxy-user me:guessed";
    for more in ["--proxy-anyauth", "--proxy-basic"] {
        assert!(curl(&chain, &format!("{wrong} {more}")).is_err());
    }
    assert!(curl(&chain, "--socks5 10.1.0.2:7001 --proxy-user me:guessed").is_err());
    let denied = || rules::status(&proxy)["counters"]["refused"]["denied"].as_u64().unwrap() >= 3;
    assert!(common::within(Duration::from_secs(5), denied));
    let line = "authentication failed: client 10.1.0.1, method ";
    let told = || proxy.log().matches(line).count() >= 3;
    assert!(common::within(Duration::from_secs(5), told), "{}", proxy.log());
    for method in ["basic, user \"me\"", "socks5, user \"me\""] {
        assert!(proxy.log().contains(&format!("{line}{method}")), "{}", proxy.log());
    }
    for line in logged(&scratch, 3) {
        assert_eq!((&line["status"], &line["user"]), (&407.into(), &().into()), "{line}");
    }
}
