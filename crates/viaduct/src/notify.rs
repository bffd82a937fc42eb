//! Reports the state of a service to the service manager (systemd's `sd_notify` protocol: one
//! datagram of `KEY=value` lines to the socket that `NOTIFY_SOCKET` names). Without a manager
//! nothing is sent. The crate `sd-notify` (0.5) cannot send to abstract names, which managers in
//! containers use.

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::debug;
use viaduct_sys::clock;

/// State of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The service is up, or a reload has ended.
    Ready,
    /// A reload has begun.
    Reloading,
    /// The service is stopping: it drains flows, or restores the machine's settings.
    Stopping,
    /// Answer to the watchdog: no event loop of the service hangs.
    Alive,
}

/// Reports `phase`. Failures are only logged: the service does not depend on its manager.
pub fn notify(phase: Phase) {
    report(&message(phase));
}

/// Reports that process `pid`, which this process has started, is now the service's main process,
/// and is up.
pub fn notify_main_process(pid: u32) {
    report(&format!("MAINPID={pid}\nREADY=1\n"));
}

/// Returns whether a service manager follows this service to the process that
/// [`notify_main_process`] names. Without such a manager, the service ends with this process: a
/// supervisor then restarts the service, and a container stops if this is its first process.
pub fn is_main_process_followed() -> bool {
    is_followed(env::var_os("NOTIFY_SOCKET").as_deref(), std::process::id())
}

fn is_followed(socket: Option<&OsStr>, process: u32) -> bool {
    socket.is_some_and(|socket| !socket.is_empty()) && process != 1
}

fn report(message: &str) {
    if let Some(socket) = env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&socket, message)
    {
        debug!("cannot notify the service manager: {error}");
    }
}

fn message(phase: Phase) -> String {
    match phase {
        Phase::Ready => "READY=1\n".to_owned(),
        Phase::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={}\n", clock::now() / 1_000),
        Phase::Stopping => "STOPPING=1\n".to_owned(),
        Phase::Alive => "WATCHDOG=1\n".to_owned(),
    }
}

fn send(socket: &OsStr, message: &str) -> std::io::Result<()> {
    // A leading `@` denotes an abstract name.
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_manager_with_a_socket_follows_another_process() {
        assert!(is_followed(Some(OsStr::new("/run/systemd/notify")), 7));
        assert!(!is_followed(Some(OsStr::new("/run/systemd/notify")), 1));
        assert!(!is_followed(Some(OsStr::new("")), 7));
        assert!(!is_followed(None, 7));
    }

    #[test]
    fn a_manager_is_notified_by_path_and_by_abstract_name() {
        let path = env::temp_dir().join(format!("viaduct-notify-{}", std::process::id()));
        let abstract_name = format!("viaduct-notify-{}", std::process::id());
        let at_path = UnixDatagram::bind(&path).unwrap();
        let abstractly = UnixDatagram::bind_addr(
            &SocketAddr::from_abstract_name(abstract_name.as_bytes()).unwrap(),
        )
        .unwrap();
        send(path.as_os_str(), &message(Phase::Ready)).unwrap();
        send(OsStr::new(&format!("@{abstract_name}")), &message(Phase::Reloading)).unwrap();
        std::fs::remove_file(&path).unwrap();
        let receive = |socket: UnixDatagram| {
            let mut text = [0; 100];
            let len = socket.recv(&mut text).unwrap();
            String::from_utf8(text[..len].to_vec()).unwrap()
        };
        assert_eq!(receive(at_path), "READY=1\n");
        assert!(receive(abstractly).starts_with("RELOADING=1\nMONOTONIC_USEC="));
    }
}
