//! A proxy of an unprivileged user: it forwards late, logs this, and creates its socket in a
//! directory that the user may write to.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::thread;

use crate::common::{UnprivilegedUser, free_port, there_and_back};

#[test]
fn without_privilege_flows_are_forwarded_late_with_a_warning() {
    let user = UnprivilegedUser::new("late");
    std::fs::create_dir(user.at("user")).unwrap();
    user.give(&user.at("user"));
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free_port();
    let (listen, to) = (format!("127.0.0.1:{port}"), server.local_addr().unwrap().to_string());
    let proxy = |more: &[&str]| {
        let mut command = user.command("timeout");
        command.args(["--signal=KILL", "60"]).arg(user.viaduct());
        command.args(["proxy", "--listen", &listen, "--to", &to]).args(more);
        command.env_remove("VIADUCT_RUN_DIR").env("XDG_RUNTIME_DIR", user.at("user"));
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let is_root = rustix::process::geteuid().is_root();
    let mut running = proxy(&[]);
    let mut log = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = Vec::new();
    while !said.last().is_some_and(|line: &String| line.contains(" up ")) {
        said.push(log.next().expect("the proxy has not come up"));
    }
    let warns = said.iter().any(|line| line.contains("forwarded late"));
    assert!(warns || !is_root, "{said:?}");
    let client = thread::spawn(move || TcpStream::connect(("127.0.0.1", port)).unwrap());
    let (far, _) = server.accept().unwrap();
    there_and_back(client.join().unwrap(), far, b"through it");
    let socket = user.at("user/viaduct").join(format!("proxy-{port}.sock"));
    assert!(socket.exists(), "{socket:?}");
    let kill = std::process::Command::new("kill").arg(running.id().to_string()).status();
    assert!(kill.unwrap().success());
    running.wait().unwrap();

    if !is_root {
        return;
    }
    // With --forward early the proxy fails, and its error names the remedy.
    let mut asked = proxy(&["--forward", "early"]);
    let mut said = String::new();
    asked.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(!asked.wait().unwrap().success());
    assert!(said.contains("cannot watch for SYNs: run as root, or add --forward late"), "{said}");
}

#[test]
fn a_reload_that_requires_options_without_privilege_changes_nothing() {
    let user = UnprivilegedUser::new("options");
    std::fs::create_dir(user.at("user")).unwrap();
    user.give(&user.at("user"));
    let (config, port) = (user.at("user/proxy.toml"), free_port());
    let head = format!("[proxy]\nlisten = '127.0.0.1:{port}'\nto = '127.0.0.1:1'\n");
    std::fs::write(&config, &head).unwrap();
    let mut command = user.command("timeout");
    command.args(["--signal=KILL", "60"]).arg(user.viaduct()).args(["proxy", "--config"]);
    command.arg(&config).env_remove("VIADUCT_RUN_DIR").env("XDG_RUNTIME_DIR", user.at("user"));
    let mut running = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut log = BufReader::new(running.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(log.any(|line| line.contains(" up ")));
    let policy = "[[policy]]\nnext = '127.0.0.1:2'\ntell = 'option'\n";
    std::fs::write(&config, head + policy).unwrap();
    let signal = |name: &str| {
        let pid = running.id().to_string();
        assert!(std::process::Command::new("kill").args([name, &pid]).status().unwrap().success());
    };
    signal("-HUP");
    let ends = ["nothing has changed", "the config was read again"];
    let said = log.find(|line| ends.iter().any(|end| line.contains(end))).unwrap();
    assert!(said.contains(ends[0]) && said.contains("cannot write TCP options"), "{said}");
    signal("-TERM");
    running.wait().unwrap();
}
