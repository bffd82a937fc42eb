//! Control socket through which programs send requests to the handlers of their flows (section 3.6
//! of the TESLA paper). Its clients are the crate `viaduct-aware` and `viaduct.h`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;

use anyhow::{Context, Result};
use rustix::net::sockopt;
use tracing::debug;
use viaduct_proto::wrap::aware::{Ask, MAX_MESSAGE, NO, YES};
use viaduct_proto::wrap::{SECRET, Secret};
use viaduct_sys::random::random;
use viaduct_sys::socket::seqpacket;

use super::{admission, control_socket};
use crate::engine::aware::{ProgramRequest, RequestKind, SocketId};
use crate::engine::commands::{CommandSender, WorkerCommand};

/// Environment variable with the name of the control socket and the secret of its requests.
pub const CONTROL: &str = "VIADUCT_CONTROL";

/// Opens the control socket for the flows that `worker` carries. Returns the value of [`CONTROL`].
pub fn start(worker: CommandSender) -> Result<String> {
    let name = format!("@viaduct-control-{:x}", u64::from_ne_bytes(random()?));
    let listener = seqpacket::listen(&name).context("cannot listen for requests of programs")?;
    let secret = admission::secret()?;
    let serve = move || control_socket::serve(&listener, |socket| handle(socket, &secret, &worker));
    thread::Builder::new().name("control".to_owned()).spawn(serve)?;
    Ok(format!("{name};{}", secret.digits()))
}

/// Passes a request to the worker. Returns the socket if no request has arrived yet.
fn handle(socket: OwnedFd, secret: &Secret, worker: &CommandSender) -> Option<OwnedFd> {
    let mut bytes = [0; SECRET + MAX_MESSAGE];
    let (length, beside) = match seqpacket::receive(&socket, &mut bytes) {
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(socket),
        Err(_) => return None,
    };
    let ask = Ask::parse(secret.open(&bytes[..length])?)?;
    let candidates = socket_ids(&beside.filter(admission::is_tcp)?);
    let kind = match ask {
        Ask::Watch => RequestKind::Watch(socket),
        Ask::Control { to, request } => {
            let answer = move |answer: Option<Vec<u8>>| send_answer(&socket, answer);
            RequestKind::Control(to.to_owned(), request.to_owned(), Box::new(answer))
        }
    };
    worker.send(WorkerCommand::Request(Box::new(ProgramRequest { candidates, kind })));
    None
}

/// IDs under which the flow of a program's socket may be registered.
fn socket_ids(socket: &OwnedFd) -> Vec<SocketId> {
    let cookie = sockopt::socket_cookie(socket).ok().map(SocketId::Cookie);
    [cookie, ends_of(socket)].into_iter().flatten().collect()
}

/// ID of an inbound flow of a program, from the addresses of the program's socket.
pub(super) fn ends_of(socket: &OwnedFd) -> Option<SocketId> {
    let canonical = |at: SocketAddr| SocketAddr::new(at.ip().to_canonical(), at.port());
    let peer = SocketAddr::try_from(rustix::net::getpeername(socket).ok()??).ok()?;
    let own = SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()?;
    Some(SocketId::Ends(canonical(peer), canonical(own)))
}

fn send_answer(socket: &OwnedFd, answer: Option<Vec<u8>>) {
    let mut bytes = vec![if answer.is_some() { YES } else { NO }];
    bytes.extend(answer.unwrap_or_default());
    bytes.truncate(MAX_MESSAGE);
    if let Err(error) = seqpacket::send(socket, &bytes, None) {
        debug!("cannot answer a program: {error}");
    }
}
