//! Requests from a program to the handlers of its own flows, and events from these handlers
//! (section 3.6 of the paper TESLA, on a session layer; not RFC 4082).
//!
//! In a program that is not run by `viaduct run`, or for a flow without handlers, `control` and
//! `watch` return `None`.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! let stream = std::net::TcpStream::connect("example.org:22")?;
//! // The program knows that the network has changed, so `migrate` need not detect the change.
//! viaduct_aware::control(&stream, "migrate", b"retry")?;
//! if let Some(mut events) = viaduct_aware::watch(&stream)? {
//!     while let Some(event) = events.next()? {
//!         println!("{}", String::from_utf8_lossy(&event)); // "migrate: disconnected"
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! C programs include `viaduct.h`, which uses the same protocol.

use std::env;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use viaduct_sys::socket::seqpacket;
use viaduct_wrap::Secret;
use viaduct_wrap::aware::{Ask, MAX_MESSAGE, YES};

/// Environment variable with the control socket of the run, and the run's secret: `@NAME;SECRET`.
const CONTROL: &str = "VIADUCT_CONTROL";

/// Returns whether this program is wrapped. Some flows of a wrapped program may have no handlers.
pub fn is_wrapped() -> bool {
    env::var_os(CONTROL).is_some()
}

/// Sends a control request to the handler called `handler` of the flow whose socket is `flow`.
/// Returns the handler's answer, at most 4095 bytes. `None` if the program is not wrapped, the flow
/// has no such handler, or the handler does not answer.
///
/// # Errors
/// The handler's name has more than 255 bytes, the name and the request together have more than
/// 4093 bytes, or a system call fails, for example because no descriptor is left.
pub fn control(flow: impl AsFd, handler: &str, request: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let Some(socket) = ask(flow, Ask::Control { to: handler, request })? else { return Ok(None) };
    let mut bytes = vec![0; MAX_MESSAGE];
    let (length, _) = seqpacket::receive(&socket, &mut bytes)?;
    bytes.truncate(length);
    Ok((bytes.first() == Some(&YES)).then(|| bytes.split_off(1)))
}

/// Subscribes to later events of the handlers of the flow whose socket is `flow`. `None` if the
/// flow has no handlers, or the program is not wrapped.
///
/// # Errors
/// A system call fails, for example because no descriptor is left.
pub fn watch(flow: impl AsFd) -> io::Result<Option<Events>> {
    let Some(socket) = ask(flow, Ask::Watch)? else { return Ok(None) };
    let (length, _) = seqpacket::receive(&socket, &mut [0; MAX_MESSAGE])?;
    Ok((length > 0).then_some(Events { socket }))
}

/// Events of handlers, in the order in which they are sent. Events are dropped if the program
/// does not read them and the queue is full.
#[derive(Debug)]
pub struct Events {
    socket: OwnedFd,
}

impl Events {
    /// Waits for the next event. `None` if the flow has ended.
    ///
    /// # Errors
    /// The receive call fails.
    #[allow(clippy::should_implement_trait, reason = "it may fail")]
    pub fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let (length, _) = seqpacket::receive(&self.socket, &mut bytes)?;
        bytes.truncate(length);
        Ok((length > 0).then_some(bytes))
    }
}

impl AsFd for Events {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends `ask` to the control socket. `None` if there is no control socket.
fn ask(flow: impl AsFd, ask: Ask<'_>) -> io::Result<Option<OwnedFd>> {
    let Some(control) = env::var(CONTROL).ok() else { return Ok(None) };
    let Some((name, secret)) = control.split_once(';') else { return Ok(None) };
    let Some(secret) = Secret::parse(secret.as_bytes()) else { return Ok(None) };
    let request = ask.emit().ok_or(ErrorKind::ArgumentListTooLong)?;
    let socket = match seqpacket::connect(name) {
        Ok(socket) => socket,
        // The run has ended, or the program has entered another network namespace.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        Err(error) => return Err(error),
    };
    let request = [secret.bytes(), &request[..]].concat();
    seqpacket::send(&socket, &request, Some(flow.as_fd()))?;
    Ok(Some(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_of_a_program_that_is_not_wrapped_have_no_effect() {
        let (socket, _other) = seqpacket::pair().unwrap();
        if !is_wrapped() {
            assert_eq!(control(&socket, "migrate", b"retry").unwrap(), None);
            assert!(watch(&socket).unwrap().is_none());
        }
    }
}
