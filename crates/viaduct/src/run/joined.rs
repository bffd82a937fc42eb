//! Connection of a run to a shared master.
//!
//! The run hears its program's connects as ever, and keeps the program's side of each: how to
//! report the outcome, and how to connect its socket. Only the flow itself is the master's.
//! Nothing goes around the chain if the master dies: this process refuses flows until a master
//! of that name runs again.
//!
//! ```text
//!   interposer ── Call ──▶ Joined: keeps PendingConnect ── to, a place ──▶ master: the flow
//!   program ◀── complete(place), refuse ◀── Meet, Refuse ──┘
//! ```

use std::collections::HashMap;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use anyhow::{Context, Result};
use tracing::{debug, warn};
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::wrap::shared::{Down, RECORD, Up};
use viaduct_proto::wrap::wire::Welcome;
use viaduct_sys::socket::pending::ClosedPorts;
use viaduct_sys::socket::{seqpacket, tcp};

use super::road::Road;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};

/// Connection to a shared master, and the program's side of the flows that it carries.
#[derive(Debug)]
pub struct Joined {
    road: Road,
    waits: Mutex<Waits>,
    /// Sockets that cannot be connected are connected to this port, so that the master sees the
    /// failure.
    closed: ClosedPorts,
}

#[derive(Debug, Default)]
struct Waits {
    next: u64,
    /// Pending flows by ID; the master has the other descriptor of each socket.
    list: HashMap<u64, (Side, FlowSocket<TcpStream>)>,
    /// Socket to the master, while one runs.
    socket: Option<Arc<OwnedFd>>,
}

/// The program's side of a flow.
#[derive(Debug)]
enum Side {
    Connects(Box<dyn PendingConnect>),
    Listens(Box<dyn Program>),
}

impl Joined {
    /// Joins the master `name`, whose socket is in `run_dir`. Returns its welcome, which
    /// announces its rules.
    ///
    /// # Errors
    /// No master of this name runs, or it rejects this run.
    pub fn to(name: &str, run_dir: &Path) -> Result<(Arc<Joined>, Welcome)> {
        let road = Road::to(name, run_dir);
        let (socket, welcome) = road.open()?;
        let closed = ClosedPorts::open().context("reserve a port that is closed")?;
        let socket = Arc::new(socket);
        let waits = Waits { socket: Some(socket.clone()), ..Waits::default() };
        let joined = Arc::new(Joined { road, waits: Mutex::new(waits), closed });
        let hears = joined.clone();
        let stay = move || hears.stay(socket, &welcome);
        thread::Builder::new().name("joined".to_owned()).spawn(stay)?;
        Ok((joined, welcome))
    }

    /// Asks the master to begin a program's connect.
    pub fn call(&self, call: Call) {
        let Call { to, source, is_bound, mirrored, mut held } = call;
        let Address::Ip(to) = to else { return held.refuse(Failure::Unreachable) };
        match held.take_socket() {
            Ok(place) => {
                let lent = place.is_lent();
                let options = mirrored.0;
                let up = |id| Up::Call { id, to, source, lent, is_bound, options };
                self.say(Side::Connects(held), place, up, None);
            }
            Err(error) => {
                debug!("a connect: {error}");
                held.refuse(Failure::Unreachable);
            }
        }
    }

    /// Asks the master to accept a connection to a program.
    pub fn arrive(&self, arrival: Arrival) {
        let Arrival { stream, client, own, mut program, .. } = arrival;
        // The time that its handlers take is not known here.
        program.handlers_wait();
        match program.take_socket() {
            Ok(place) => {
                let lent = stream.is_lent() || place.is_lent();
                let up = |id| Up::Arrival { id, client, own, lent };
                self.say(Side::Listens(program), place, up, Some(&stream));
            }
            Err(error) => {
                debug!("a connection to a program: {error}");
                let _ = tcp::reset_on_close(&stream);
            }
        }
    }

    /// Keeps the program's side, and sends the request.
    fn say(
        &self,
        side: Side,
        place: FlowSocket<TcpStream>,
        up: impl FnOnce(u64) -> Up,
        stream: Option<&TcpStream>,
    ) {
        let theirs = place.try_clone();
        let mut waits = self.waits();
        let (Ok(theirs), Some(socket)) = (theirs, waits.socket.clone()) else {
            drop(waits);
            return side.refuse(Failure::Reset);
        };
        let id = waits.next;
        waits.next += 1;
        waits.list.insert(id, (side, place));
        drop(waits);
        let beside: Vec<BorrowedFd<'_>> =
            stream.into_iter().map(AsFd::as_fd).chain([theirs.as_fd()]).collect();
        if let Err(error) = seqpacket::send_with_fds(&socket, &up(id).emit(), &beside) {
            debug!("tell the master: {error}");
            if let Some((side, _)) = self.take(id) {
                side.refuse(Failure::Reset);
            }
        }
    }

    /// Handles messages of the master, and of each successor that has `promised` the same.
    fn stay(&self, mut socket: Arc<OwnedFd>, promised: &Welcome) {
        let name = &self.road.name;
        loop {
            self.hear(&socket);
            let left = {
                let mut waits = self.waits();
                waits.socket = None;
                std::mem::take(&mut waits.list)
            };
            warn!(
                "the master {name} has ended: flows that it carried are reset, new ones are refused"
            );
            left.into_values().for_each(|(side, _)| side.refuse(Failure::Reset));
            socket = Arc::new(self.road.open_again(promised));
            self.waits().socket = Some(socket.clone());
        }
    }

    /// Handles messages of the master until it ends.
    fn hear(&self, socket: &OwnedFd) {
        let name = &self.road.name;
        let mut bytes = [0; RECORD];
        loop {
            match seqpacket::receive(socket, &mut bytes) {
                Ok((0, _)) => break,
                Ok((length, _)) => match Down::parse(&bytes[..length]) {
                    Some(down) => self.obey(down),
                    None => break warn!("the master {name} says what means nothing"),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break warn!("the master {name} cannot be heard: {error}"),
            }
        }
    }

    fn obey(&self, down: Down) {
        match down {
            Down::Named { id, own } => {
                if let Some((Side::Connects(held), _)) = self.waits().list.get_mut(&id) {
                    held.set_local_addr(own);
                }
            }
            Down::Meet { id } => {
                let Some((side, place)) = self.take(id) else { return };
                if let Err(error) = side.meet(&place) {
                    debug!("a program has gone: {error}");
                    self.fail(&place);
                }
            }
            Down::Refuse { id, why } => {
                if let Some((side, _)) = self.take(id) {
                    side.refuse(why);
                }
            }
            Down::Another { id: of } => self.another(of),
            // Dropping the entry answers a blocked program; for other programs the kernel
            // reports again.
            Down::Gone { id } => drop(self.take(id)),
        }
    }

    /// Answers a request for one more flow to the program of arrival `of` with a socket for it.
    fn another(&self, of: u64) {
        let program = match self.waits().list.get(&of) {
            Some((Side::Listens(program), _)) => program.for_another_flow(),
            _ => None,
        };
        let begun = program.and_then(|mut program| Some((program.take_socket().ok()?, program)));
        if let Some((place, program)) = begun {
            return self.say(Side::Listens(program), place, |id| Up::Another { id, of }, None);
        }
        let Some(socket) = self.waits().socket.clone() else { return };
        if let Err(error) = seqpacket::send(&socket, &Up::NoOther { of }.emit(), None) {
            debug!("tell the master: {error}");
        }
    }

    /// Makes the master see that its socket will not be connected.
    fn fail(&self, place: &TcpStream) {
        let v4 = place.local_addr().is_ok_and(|at| at.is_ipv4());
        let failed = self.closed.at(v4).and_then(|at| tcp::connect_bound(place, at));
        if let Err(error) = failed {
            debug!("a place: {error}");
        }
    }

    fn take(&self, id: u64) -> Option<(Side, FlowSocket<TcpStream>)> {
        self.waits().list.remove(&id)
    }

    fn waits(&self) -> std::sync::MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Side {
    fn meet(self, place: &TcpStream) -> io::Result<()> {
        match self {
            Side::Connects(mut held) => held.complete(place),
            Side::Listens(mut program) => program.connect(place),
        }
    }

    /// Refuses the flow. A client that has connected to a program sees a reset: the master
    /// drops its connection.
    fn refuse(self, why: Failure) {
        if let Side::Connects(mut held) = self {
            held.refuse(why);
        }
    }
}
