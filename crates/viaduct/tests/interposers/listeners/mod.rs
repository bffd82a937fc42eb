//! Programs that listen, wrapped by an unprivileged user: they behave as without viaduct, clients
//! pass the chain first, and no other peer can connect.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::common::{UnprivilegedUser, build_go, free_port, within};

const CHAIN: &str = "+latency:delay=1ms";
const LISTENS: &str = include_str!("listens.py");
/// Listens at the number of ports given as its argument. Prints the time taken for each half of
/// them, in microseconds.
const MANY: &str = "
import resource, socket, sys, time
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
kept, took = [], []
for _ in range(2):
    began = time.monotonic()
    for _ in range(int(sys.argv[1]) // 2):
        s = socket.socket()
        s.bind(('127.0.0.1', 0))
        s.listen()
        kept.append(s)
    took.append(int(1e6 * (time.monotonic() - began)))
print(*took)
";
/// An asyncio server that answers each request with the port of its client.
const ASYNCIO: &str = "
import asyncio, sys
async def serve(reader, writer):
    await reader.readuntil(b'\\r\\n\\r\\n')
    port = str(writer.get_extra_info('peername')[1]).encode()
    writer.write(b'HTTP/1.0 200 OK\\r\\n\\r\\n' + port)
    await writer.drain()
    writer.close()
async def main():
    async with await asyncio.start_server(serve, '127.0.0.1', int(sys.argv[1])) as server:
        await server.serve_forever()
asyncio.run(main())
";

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Ports for [`LISTENS`], one for each use.
fn ports() -> [String; 4] {
    std::array::from_fn(|_| free_port().to_string())
}

/// Builds the command `viaduct run` with these words for the unprivileged user, ended after 40 s.
fn run(user: &UnprivilegedUser, words: &[&str]) -> Command {
    let mut command = user.command("timeout");
    command.args(["--signal=KILL", "40"]).arg(user.viaduct()).arg("run").args(words);
    command
}

#[test]
fn a_listening_program_behaves_as_unwrapped() {
    let user = UnprivilegedUser::new("listens");
    let plain = Command::new("python3").args(["-c", LISTENS]).args(ports()).output().unwrap();
    assert!(text(&plain.stdout).ends_with("done\n"), "{plain:?}");
    for via in ["seccomp", "preload", "auto"] {
        let words = [CHAIN, "--via", via, "--", "python3", "-c", LISTENS];
        let wrapped = run(&user, &words).args(ports()).output().unwrap();
        assert_eq!(text(&wrapped.stdout), text(&plain.stdout), "{via}: {wrapped:?}");
    }
}

#[test]
fn by_cgroup_no_client_is_accepted_early_and_a_closed_listener_refuses() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
    command.args(["run", CHAIN, "--via", "cgroup", "--", "python3", "-c", LISTENS]);
    let wrapped = command.args(ports()).output().unwrap();
    let said = text(&wrapped.stdout);
    assert!(said.ends_with("done\n"), "{wrapped:?}");
    for line in ["accepted while the client still connects: 0", "after it is closed: ECONNREFUSED"]
    {
        assert!(said.contains(line), "{wrapped:?}");
    }
}

/// Creates a link with the address `fe80::aa`. Runs a server at two ports of this address, with the
/// arguments as the first words of its command line, and a client that connects to both.
const LINK_LOCAL: &str = r#"
ip link set lo up; ip link add name v0 index 55 type veth peer name v1
ip link set v0 up; ip link set v1 up
ip addr add fe80::aa/64 dev v0 nodad
python3 -c "$CLIENT" & "$@" python3 -c "$SERVER"; wait
"#;
const LINK_LOCAL_CLIENT: &str = "
import os, socket, time
# One write per line, because client and server share their output.
say = lambda *words: os.write(1, (' '.join(map(str, words)) + '\\n').encode())
for port in 7001, 7002:
    for _ in range(500):
        c = socket.socket(socket.AF_INET6)
        try:
            c.connect(('fe80::aa', port, 0, 55))
            break
        except ConnectionRefusedError:
            time.sleep(0.02)
    c.sendall(b'hello')
    say(c.recv(9), c.getpeername() == ('fe80::aa', port, 0, 55))
";
const LINK_LOCAL_SERVER: &str = "
import os, socket
# One write per line, because client and server share their output.
say = lambda *words: os.write(1, (' '.join(map(str, words)) + '\\n').encode())
for port, host in (7001, '::'), (7002, 'fe80::aa'):
    s = socket.socket(socket.AF_INET6)
    s.bind((host, port, 0, 55 if port == 7002 else 0))
    s.listen()
    say(s.getsockname())
    s.settimeout(20)
    c, at = s.accept()
    say(at[0], at[3], c.getsockname(), at == c.getpeername())
    c.sendall(c.recv(9))
    c.close()
";

#[test]
fn link_local_clients_keep_their_interface() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let said = |words: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["40", "unshare", "-n", "sh", "-c", LINK_LOCAL, "sh"]).args(words);
        command.env("CLIENT", LINK_LOCAL_CLIENT).env("SERVER", LINK_LOCAL_SERVER);
        let output = command.output().unwrap();
        let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
        lines.sort();
        (lines, text(&output.stderr))
    };
    let plain = said(&["env"]);
    assert_eq!(plain.0.len(), 6, "{plain:?}");
    for via in ["cgroup", "seccomp", "preload"] {
        let viaduct = env!("CARGO_BIN_EXE_viaduct");
        let wrapped = said(&[viaduct, "run", CHAIN, "--via", via, "--"]);
        assert_eq!(wrapped.0, plain.0, "{via}: {}", wrapped.1);
    }
}

/// On an idle machine each listen takes less than a millisecond in an unoptimised build. It took 40
/// ms when each listener was compared with all others.
#[test]
fn the_cost_of_bind_and_listen_does_not_grow_with_their_number() {
    const COUNT: u64 = 1000;
    /// Maximum mean time of a bind and a listen, in microseconds.
    const MAX_EACH: u64 = 2000;
    let user = UnprivilegedUser::new("many");
    for via in ["seccomp", "preload"] {
        let count = COUNT.to_string();
        let words = [CHAIN, "--via", via, "--", "python3", "-c", MANY, &count];
        let mut slowest = Vec::new();
        let is_quick = (0..5).any(|_| {
            let said = run(&user, &words).output().unwrap();
            let words = text(&said.stdout);
            let halves: Vec<u64> = words.split_whitespace().map(|of| of.parse().unwrap()).collect();
            let [first, second] = halves[..] else { panic!("{via}: {said:?}") };
            slowest.push((first, second));
            first + second < MAX_EACH * COUNT && second < 3 * first
        });
        assert!(is_quick, "{via}: {slowest:?} microseconds");
    }
}

/// A server under `viaduct run`, ended on drop.
struct Server(Child);

impl Server {
    fn start(user: &UnprivilegedUser, words: &[&str]) -> Server {
        let mut command = user.command(user.viaduct());
        let log = fs::File::create(user.at("server.log")).unwrap();
        command.arg("run").args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Server(command.spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status();
        let ended = within_mut(&mut self.0);
        if !ended {
            self.0.kill().unwrap();
        }
        self.0.wait().unwrap();
    }
}

/// Waits up to 5 s for the end of the process. Returns whether it has ended.
fn within_mut(child: &mut Child) -> bool {
    (0..250).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        child.try_wait().unwrap().is_some()
    })
}

/// Runs curl under this chain. Its output is the page, and curl's own port.
fn curl(user: &UnprivilegedUser, chain: &[&str], port: u16) -> Output {
    let url = format!("http://127.0.0.1:{port}/");
    let program = ["--", "curl", "-sS", "-m", "9", "-w", " %{local_port}", &url];
    run(user, &[chain, &program].concat()).output().unwrap()
}

/// Returns the command lines of server programs for this port.
fn servers(user: &UnprivilegedUser, port: u16) -> Vec<Vec<String>> {
    let own = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let port_word = port.to_string();
    fs::write(user.at("index.html"), "a page").unwrap();
    let web = user.at("").display().to_string();
    let config = format!(
        "daemon off; worker_processes 2; pid {web}nginx.pid; error_log {web}error.log;
        events {{}} http {{ access_log off; client_body_temp_path {web}b; proxy_temp_path {web}p;
        fastcgi_temp_path {web}f; uwsgi_temp_path {web}u; scgi_temp_path {web}s;
        server {{ listen 127.0.0.1:{port}; location / {{ return 200 $remote_port; }} }} }}"
    );
    fs::write(user.at("nginx.conf"), config).unwrap();
    let conf = user.at("nginx.conf").display().to_string();
    let mut servers = vec![
        own(&["nginx", "-p", &web, "-c", &conf]),
        own(&["python3", "-c", ASYNCIO, &port_word]),
        own(&["python3", "-m", "http.server", "-b", "127.0.0.1", "-d", &web, &port_word]),
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interposers/listeners/serve.go");
    let go = user.at("serve");
    match build_go(&go, &source) {
        true => servers.push(own(&[&go.display().to_string(), &port_word])),
        false => eprintln!("skipped: no Go compiler for the static server"),
    }
    servers
}

#[test]
fn real_servers_accept_only_clients_under_the_same_chain() {
    let user = UnprivilegedUser::new("servers");
    let key = user.key();
    let crypt = format!("+crypt:key={}", key.display());
    let port = free_port();
    for server in servers(&user, port) {
        for via in ["seccomp", "preload"] {
            let words: Vec<&str> = server.iter().map(String::as_str).collect();
            let options = ["+compress", &crypt, "--via", via, "--"];
            let _server = Server::start(&user, &[&options[..], &words].concat());
            let is_up = || TcpStream::connect(("127.0.0.1", port)).is_ok();
            let log = || fs::read_to_string(user.at("server.log")).unwrap();
            assert!(within(Duration::from_secs(20), is_up), "{server:?} by {via}: {}", log());
            for _ in 0..3 {
                let said = curl(&user, &["+compress", &crypt, "--via", via], port);
                let words = text(&said.stdout);
                let (page, own) = words.split_once(' ').unwrap_or_else(|| panic!("{said:?}"));
                let page_is = page == own || words.starts_with("a page");
                assert!(page_is, "{server:?} by {via}: {said:?} {}", log());
            }
            let plain = curl(&user, &["+count", "--via", via], port);
            assert!(!plain.status.success(), "{server:?} by {via}: {plain:?}");
        }
    }
}

#[test]
fn a_server_is_unreachable_once_its_master_is_killed() {
    let user = UnprivilegedUser::new("killed");
    let port = free_port();
    let server = "
import os, signal, socket, sys
s = socket.create_server(('127.0.0.1', int(sys.argv[1])))
c, at = s.accept()
c.sendall(b'hello')
if c.recv(1) == b'!':
    os.kill(os.getppid(), signal.SIGKILL)
try: print('read', c.recv(1))
except ConnectionResetError: print('reset', flush=True)
s.settimeout(2)
try: print('accepted', s.accept())
except OSError: print('no client')
";
    let words = [CHAIN, "--via", "seccomp", "--", "python3", "-c", server, &port.to_string()];
    let mut server = run(&user, &words);
    let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut client = None;
    assert!((0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(20));
        client = TcpStream::connect(("127.0.0.1", port)).ok();
        client.is_some()
    }));
    let mut client = client.unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    client.write_all(b"!").unwrap();
    assert!(!matches!(client.read(&mut [0; 1]), Ok(1..)));
    // Retries, because the kernel closes the descriptors of a process one after the other.
    let refused = || TcpStream::connect(("127.0.0.1", port)).is_err();
    assert!(within(Duration::from_secs(5), refused), "the port is closed");
    let said = server.wait_with_output().unwrap();
    assert_eq!(text(&said.stdout), "reset\nno client\n", "{said:?}");
}

#[test]
fn a_set_user_id_program_runs_as_its_caller_without_privilege() {
    let user = UnprivilegedUser::new("set-user-id");
    let id = user.has(Path::new("/usr/bin/id"));
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let said = |mut command: Command| text(&command.arg("-u").output().unwrap().stdout);
    let plain = said(user.command(&id));
    let caller = said(user.command("id"));
    if plain == caller {
        return eprintln!("skipped: not root, or no set-user-ID programs in {}", id.display());
    }
    for via in ["seccomp", "preload", "auto"] {
        let mut command = run(&user, &[CHAIN, "--via", via, "--"]);
        command.arg(&id);
        assert_eq!(said(command), caller, "{via}");
    }
    // Under a privileged interposer, set-user-ID programs change their user as usual.
    for via in ["cgroup", "seccomp"] {
        let mut command = Command::new(user.viaduct());
        command.args(["run", CHAIN, "--via", via, "--", "setpriv", "--reuid=65534"]);
        command.args(["--regid=65534", "--clear-groups"]).arg(&id);
        assert_eq!(said(command), plain, "{via}");
    }
}
