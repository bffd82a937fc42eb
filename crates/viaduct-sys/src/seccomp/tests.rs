use std::io::ErrorKind;
use std::net::TcpListener;
use std::process::Stdio;
use std::thread;

use super::*;

/// Answers all trapped calls of `command` with `answer`, and waits for the command's end. Connects
/// to Unix sockets are left to the kernel, as a C library may connect to a name service daemon.
fn watch(
    traps: Traps,
    command: Command,
    mut answer: impl FnMut(&Listener, &Notification) -> Reply,
) -> std::process::ExitStatus {
    let (mut child, listener) = traps.spawn(command).unwrap();
    let waiter = thread::spawn(move || child.wait().unwrap());
    while !waiter.is_finished() {
        let mut fds = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
        let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        if rustix::event::poll(&mut fds, Some(&tick)).unwrap_or(0) == 0
            || !fds[0].revents().contains(rustix::event::PollFlags::IN)
        {
            thread::yield_now();
            continue;
        }
        if let Ok(call) = listener.receive() {
            let reply = if is_local(&call) { Reply::Continue } else { answer(&listener, &call) };
            let _ = listener.reply(&call, reply);
        }
    }
    waiter.join().unwrap()
}

fn is_local(call: &Notification) -> bool {
    let mut family = [0; 2];
    call.call == libc::SYS_connect
        && Task::open(call.thread)
            .is_ok_and(|task| task.read(call.arguments[1], &mut family).is_ok_and(|n| n == 2))
        && i32::from(u16::from_ne_bytes(family)) == libc::AF_UNIX
}

fn python(program: &str) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdin(Stdio::null());
    command
}

#[test]
fn a_child_whose_parent_is_killed_at_the_handover_does_not_wait() {
    let mut command = Command::new("true");
    let ours = Traps::default().install_before_exec(&mut command).unwrap();
    let killed = thread::spawn(move || rustix::io::read(&ours, &mut [0; 8]).unwrap());
    let error =
        command.spawn().expect_err("the program started although nothing took the listener");
    assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
    assert_eq!(killed.join().unwrap(), 8);
}

#[test]
fn memory_is_not_read_for_a_caller_that_has_ended() {
    let program = "import socket; socket.socket().connect(('127.0.0.1', 9))";
    let (mut child, listener) = Traps::default().spawn(python(program)).unwrap();
    let call = loop {
        let call = listener.receive().unwrap();
        if !is_local(&call) {
            break call;
        }
        listener.reply(&call, Reply::Continue).unwrap();
    };
    // This process stands in for a thread that reuses the caller's ID.
    let other = Task::open(std::process::id()).unwrap();
    let (ours, mut bytes) = ([7u8; 4], [0; 4]);
    let at = ours.as_ptr() as u64;
    assert_eq!(listener.read(&call, &other, at, &mut bytes).unwrap(), 4);
    child.kill().unwrap();
    child.wait().unwrap();
    let gone = |error: io::Error| error.kind() == ErrorKind::NotFound;
    assert!(listener.read(&call, &other, at, &mut bytes).is_err_and(gone));
    assert!(listener.write(&call, &other, at, &[8; 4]).is_err_and(gone));
    assert_eq!(std::hint::black_box(&ours), &[7; 4]);
}

#[test]
fn a_connect_is_reported_with_its_address_and_its_socket() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut seen = Vec::new();
    let program = format!("import socket; socket.create_connection(('127.0.0.1', {port}))");
    let status = watch(Traps::default(), python(&program), |told, call| {
        assert_eq!(call.call, libc::SYS_connect);
        let task = Task::open(call.thread).unwrap();
        let mut address = [0; 16];
        assert_eq!(task.read(call.arguments[1], &mut address).unwrap(), 16);
        assert!(told.waits(call));
        let socket = task.duplicate(call.arguments[0] as i32).unwrap();
        assert!(rustix::net::sockopt::socket_type(&socket).is_ok());
        seen.push(u16::from_be_bytes([address[2], address[3]]));
        Reply::Continue
    });
    assert!(status.success());
    assert_eq!(seen, [port]);
}

#[test]
fn a_call_fails_with_the_error_of_the_reply() {
    let program = "import socket, errno
try: socket.create_connection(('127.0.0.1', 1))
except OSError as e: raise SystemExit(e.errno != errno.EHOSTUNREACH)
raise SystemExit(2)";
    let reply = Reply::Failed(libc::EHOSTUNREACH);
    let status = watch(Traps::default(), python(program), |_, _| reply);
    assert!(status.success(), "{status}");
}

#[test]
fn io_uring_is_absent_and_datagrams_are_reported_on_request_only() {
    let program = "import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(425, 8, None) == -1 and ctypes.get_errno() == 38
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))
socket.socket(socket.AF_UNIX)";
    let calls = |traps| {
        let mut calls = Vec::new();
        let status = watch(traps, python(program), |_, call| {
            calls.push(call.call);
            Reply::Continue
        });
        assert!(status.success(), "{status}");
        calls
    };
    assert_eq!(calls(Traps::default()), [0i64; 0]);
    let all = Traps { sends: true, datagrams: true, families: true, ..Traps::default() };
    assert_eq!(calls(all), [libc::SYS_socket, libc::SYS_sendto]);
}

#[test]
fn a_second_supervisor_is_refused_with_its_reason() {
    let inner = std::env::current_exe().unwrap();
    if std::env::var_os("VIADUCT_TEST_NESTED").is_some() {
        let error = Traps::default().spawn(Command::new("true")).unwrap_err();
        assert!(matches!(error, SeccompError::Nested), "{error}");
        return;
    }
    let mut command = Command::new(inner);
    command.args(["--exact", "seccomp::tests::a_second_supervisor_is_refused_with_its_reason"]);
    command.env("VIADUCT_TEST_NESTED", "1").stdout(Stdio::null());
    assert!(watch(Traps::default(), command, |_, _| Reply::Continue).success());
}

#[test]
fn a_missing_program_is_reported_as_not_found() {
    let error = Traps::default().spawn(Command::new("/nowhere/at/all")).unwrap_err();
    assert!(matches!(error, SeccompError::Spawn(e) if e.kind() == ErrorKind::NotFound));
}
