//! Options that are refused at the start, with an error that names valid ones.

use super::*;

#[test]
fn a_listener_that_cannot_accept_intercepted_flows_is_refused() {
    let check = |listen: &str, intercept: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        command.args(["proxy", "--check", "--listen", listen, "--intercept", intercept]);
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    assert_eq!(check("[::]:7000", "10.2.0.0/16,fd02::/16"), "");
    assert_eq!(check("0.0.0.0:7000", "10.2.0.0/16"), "");
    for (listen, intercept) in [
        ("127.0.0.1:7000", "10.2.0.0/16"),
        ("0.0.0.0:7000", "10.2.0.0/16,fd02::/16"),
        ("[fd01::1]:7000", "fd02::/16"),
    ] {
        let said = check(listen, intercept);
        assert!(
            said.contains("intercept") && said.contains(&format!("listen is {listen}")),
            "{said}"
        );
    }
}

#[test]
fn options_for_a_single_worker_are_refused_with_several() {
    let check = |more: &str| {
        let options = "proxy --check --listen 127.0.0.1:7000 --to 127.0.0.1:1 --workers 2";
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let output = command.args(options.split(' ').chain(more.split_whitespace())).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    assert_eq!(check(""), "");
    assert_eq!(check("--idle-exit 0s"), "", "without idle-exit several workers are possible");
    for (more, what) in [
        ("--on-demand", "on-demand"),
        ("--idle-exit 9s", "idle-exit"),
        ("--accept after-connect", "accept after-connect"),
    ] {
        let said = check(more);
        assert!(said.contains(&format!("workers: 2 are not possible with {what}")), "{said}");
    }
}

#[test]
fn wrong_options_and_those_without_effect_are_refused_in_one_line() {
    const TO: &str = "--listen 127.0.0.1:7000 --to 127.0.0.1:1";
    const PATH: &str = "--listen [::]:7000 --intercept 10.2.0.0/16";
    const ASKED: &str = "--listen [::]:7000 --allow-from ::/0 --allow-to ::/0 --expect";
    let scratch = Scratch::new().unwrap();
    let password = |text: &str| {
        let file = scratch.write(&format!("password-{}", text.len()), text).unwrap();
        format!("{ASKED} socks --password-file {}", file.display())
    };
    let check = |options: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let output = command.args(["proxy", "--check"]).args(options.split_whitespace()).output();
        let output = output.unwrap();
        let said = [output.stderr, output.stdout].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    for right in [
        TO,
        PATH,
        &format!("{PATH} --ports 80,8000-8010"),
        &format!("{ASKED} socks"),
        &format!("{TO} --metrics 127.0.0.2:7000"),
        &format!("{TO} --metrics [::1]:7000"),
    ] {
        assert!(check(right).0, "{right}: {}", check(right).1);
    }
    let (_, said) = check(&password("me:pw\n"));
    assert!(said.contains("mode 644: others can read it; 600 is right"), "{said}");
    let wrong = [
        ("", "give listen, and to, intercept or expect; or tunnel-listen"),
        ("--listen [::]:7000", "give listen, and to, intercept or expect; or tunnel-listen"),
        ("--to 127.0.0.1:1", "listen: no address is given"),
        ("--listen [::]:7000 --to host.example:80", "names of hosts are not looked up"),
        ("--listen [::]:7000 --to 127.0.0.1:0", "a port from 1 to 65535"),
        ("--listen [::]:0 --to 127.0.0.1:1", "a port from 1 to 65535"),
        ("--listen [::]:7000 --intercept 10.2.0.5/16", "10.2.0.0/16 is expected"),
        (&format!("{TO} --flows 0"), "a number of at least 1"),
        (&format!("{TO} --flows 300 --max-early 151"), "more than half of flows, 150"),
        (&format!("{TO} --rate 5"), "1k at least"),
        (&format!("{TO} --connect-timeout 0s"), "a time above 0s"),
        (&format!("{TO} --metrics 127.0.0.1:7000"), "metrics: 127.0.0.1:7000 overlaps listen"),
        (
            "--listen [::]:7000 --to 127.0.0.1:1 --metrics 127.0.0.1:7000",
            "overlaps listen, [::]:7000",
        ),
        (&format!("{TO} --chain-buffer 0"), "4K at least"),
        (&format!("{TO} --receive-buffer 1"), "4K at least"),
        (&format!("{TO} --receive-buffer 4G"), "1G at most"),
        (&format!("{TO} --send-buffer 9223372036854775807"), "1G at most"),
        (&format!("{TO} --early-wait 18446744073709551615s"), "36500 days at most"),
        (&format!("{TO} --drain 18446744073709551615s"), "36500 days at most"),
        ("--listen 0.0.0.0:7000 --to 127.0.0.1:7000", "127.0.0.1:7000 is this proxy itself"),
        ("--listen [::]:7000 --to 127.0.0.1:7000", "to: 127.0.0.1:7000 is this proxy itself"),
        (&format!("{TO} --next 127.0.0.1:7000"), "next: 127.0.0.1:7000 is this proxy itself"),
        ("--listen [::]:7000 --to 0.0.0.0:80", "an address to connect to"),
        (&format!("{TO} --next [::]:80"), "an address to connect to"),
        ("--config x --flows 3", "flows: with --config all options"),
        ("--config x --listen 127.0.0.1:7000", "listen: with --config all options"),
        ("--config x --keep-client", "keep-client: with --config all options"),
        ("--config x --links 3", "links: with --config all options"),
        (&format!("{TO} --tunnel-buffer 0"), "64K at least"),
        (&format!("{TO} --stranger-memory 1M"), "stranger-memory: an option of tunnels"),
        (
            &format!("{TO} --stranger-memory-per-source 1M"),
            "stranger-memory-per-source: an option of tunnels",
        ),
        (&format!("{TO} --stranger-memory 2T"), "such as 2M"),
        (&format!("{TO} --ports 80"), "ports: they need intercept"),
        (&format!("{TO} --keep-client"), "keep-client: it needs intercept"),
        (&format!("{TO} --links 3"), "links: an option of the dialling end"),
        (&format!("{TO} --carrier quic"), "carrier: an option of tunnels"),
        (&format!("{TO} --link-congestion bbr"), "link-congestion: an option of tunnels"),
        (&format!("{TO} --tell proxy"), "tell: no hop"),
        (&format!("{ASKED} socks --to 127.0.0.1:1"), "expect, to: they exclude each other"),
        (&format!("{ASKED} socks --intercept ::/0"), "expect, intercept: they exclude"),
        (&format!("{TO} --next 10.0.0.1:1 --trickles udp"), "trickles, next: they exclude"),
        (&format!("{TO} --tunnel 10.0.0.1:1"), "tunnel: it needs key"),
        ("--listen [::]:7000 --expect socks --allow-to ::/0", "expect: it needs allow-from"),
        ("--tunnel-listen [::]:7000 --key k", "tunnel-listen: it needs peer"),
        (&format!("{PATH} --ports 0"), "a port or a range"),
        (&format!("{PATH} --ports 1-200"), "128 are possible"),
        (&format!("{ASKED} proxy --password-file x"), "only SOCKS and CONNECT"),
        (&password("me:pw\nyou:pw\n"), "one line, NAME:PASSWORD"),
        (&password(":\n"), "1 to 255 bytes"),
        (&password(&format!("me:{}\n", "x".repeat(256))), "1 to 255 bytes"),
    ];
    for (options, expected) in wrong {
        let (right, said) = check(options);
        assert!(!right && said.contains(expected), "{options}: {said}");
        // The parser of the command line names `--help` below its message. Warnings are about the
        // modes of password files.
        let is_other = |line: &str| line.contains("--help") || line.contains(" WARN ");
        let lines = said.lines().filter(|line| !line.is_empty() && !is_other(line));
        assert_eq!(lines.count(), 1, "{options}: {said}");
    }
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let scratch = Scratch::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.args(["proxy", "--listen", "127.0.0.77:7021", "--to", "127.0.0.1:1", "--forward"]);
    command.args(["late", "--metrics", &taken.local_addr().unwrap().to_string(), "--run-dir"]);
    let output = command.arg(scratch.path()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("metrics: cannot use"), "{said}");
    let left: Vec<_> = std::fs::read_dir(scratch.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_limit_of_flows_fits_the_limit_of_descriptors() {
    let mut command = Command::new("sh");
    let script = "ulimit -n 64; exec \"$0\" proxy --check --listen [::]:7000 --to 127.0.0.1:1";
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_viaduct")]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("enough for 16 flows"), "{said}");
}

#[test]
fn an_unknown_congestion_control_of_a_tunnel_is_refused() {
    let scratch = Scratch::new().unwrap();
    let key = scratch.write("key", SecretKey::from_bytes([1; 32]).to_text()).unwrap();
    let peer = SecretKey::from_bytes([2; 32]).public();
    let check = |more: &str| {
        let options = format!("--key {} --peer {peer} --link-congestion {more}", key.display());
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        let command = command.args(["proxy", "--check"]).args(options.split_whitespace());
        String::from_utf8(command.output().unwrap().stderr).unwrap()
    };
    let near = "--listen 127.0.0.1:7000 --to 127.0.0.1:1 --tunnel 127.0.0.1:7100";
    let far = "--tunnel-listen 127.0.0.1:7100 --allow-to 127.0.0.1";
    for end in [near, far] {
        let said = check(&format!("nosuch {end}"));
        assert!(said.contains("link-congestion: \"nosuch\" is unknown here; there are"), "{said}");
        let said = check(&format!("reno {end}"));
        assert!(!said.contains("link-congestion"), "{said}");
    }
    let both = format!("{near} {}", far.replace("7100", "7200"));
    for end in [near, &both] {
        let said = check(&format!("nosuch {end} --carrier quic"));
        assert!(said.contains("QUIC has cubic, bbr and reno"), "{said}");
    }
}

#[test]
fn a_check_lists_what_is_intercepted_and_warns_of_options_without_effect() {
    let scratch = Scratch::new().unwrap();
    let config = "[proxy]\nlisten = '[::]:7000'\nintercept = ['10.2.0.0/16']\n\
                  ports = ['80', '8000-8002']\nkeep-client = true\nhandler = 'shape:out=2M'\n\
                  [[policy]]\nto = ['10.2.7.0/24']\nrate = '8M'\n\
                  [[policy]]\nto = ['10.2.7.9']\nports = ['80']\naction = 'deny'\n";
    let file = scratch.write("proxy.toml", config).unwrap().display().to_string();
    let check = |forwards: u8| {
        let script =
            format!("echo {forwards} > /proc/sys/net/ipv4/ip_forward && exec \"$0\" \"$@\"");
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", &script, env!("CARGO_BIN_EXE_viaduct")]);
        let output = command.args(["proxy", "--check", "--config", &file]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let said = check(0);
    for part in [
        "intercepts connections through this machine to 10.2.0.0/16, port 80, 8000-8002;",
        "keeps the clients' addresses",
        "+shape (out 2M, in any bit/s), at most 8M bit/s",
        "warning: net.ipv4.ip_forward is 0: ",
        "warning: policy 2 never applies: policy 1 comes first and matches all its flows",
    ] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(!check(1).contains("ip_forward"));
}
