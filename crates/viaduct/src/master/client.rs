//! Client of a shared master: the run's end of the connection to it.
//!
//! The run still handles its program's connects, and keeps the program's side of each, which
//! reports the outcome and connects the socket. The master carries the flow itself. If the master
//! dies, no flow bypasses the chain: this process refuses flows until a master of that name runs
//! again.
//!
//! ```text
//!   interposer ── Call ──▶ MasterClient ── destination, a bound socket ──▶ master: the flow
//!   program ◀── complete, refuse ──┴── Meet, Refuse ◀──────────────────────┘
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

use super::connect::Connector;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};

/// Connection to a shared master, and the program's side of the flows that the master carries.
#[derive(Debug)]
pub struct MasterClient {
    connector: Connector,
    state: Mutex<State>,
    /// Closed ports. A bound socket that cannot be connected to its program is connected to a
    /// closed port, so that the master sees a failure.
    closed: ClosedPorts,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Pending flows by ID; the master has a duplicate of each socket.
    list: HashMap<u64, (ProgramSide, FlowSocket<TcpStream>)>,
    /// Socket to the master; `None` while no master of this name runs.
    socket: Option<Arc<OwnedFd>>,
}

/// The program's side of a flow.
#[derive(Debug)]
enum ProgramSide {
    Connects(Box<dyn PendingConnect>),
    Listens(Box<dyn Program>),
}

impl MasterClient {
    /// Connects to the master `name`, whose socket is in `run_dir`. Returns the client, and the
    /// master's welcome, which announces its rules. Errors: no master of this name runs, or the
    /// master rejects this run.
    pub fn join(name: &str, run_dir: &Path) -> Result<(Arc<MasterClient>, Welcome)> {
        let connector = Connector::new(name, run_dir);
        let (socket, welcome) = connector.connect()?;
        let closed = ClosedPorts::open().context("cannot reserve a closed port")?;
        let socket = Arc::new(socket);
        let state = State { socket: Some(socket.clone()), ..State::default() };
        let client = Arc::new(MasterClient { connector, state: Mutex::new(state), closed });
        let reader = client.clone();
        let run = move || reader.run(socket, &welcome);
        thread::Builder::new().name("master".to_owned()).spawn(run)?;
        Ok((client, welcome))
    }

    /// Sends the master a request to begin a program's connect.
    pub fn call(&self, call: Call) {
        let Call { to, source, is_bound, mirrored, mut held } = call;
        let Address::Ip(to) = to else { return held.refuse(Failure::Unreachable) };
        match held.take_socket() {
            Ok(bound_socket) => {
                let lent = bound_socket.is_lent();
                let options = mirrored.0;
                let up = |id| Up::Call { id, to, source, lent, is_bound, options };
                self.send_request(ProgramSide::Connects(held), bound_socket, up, None);
            }
            Err(error) => {
                debug!("cannot take the socket of a connect: {error}");
                held.refuse(Failure::Unreachable);
            }
        }
    }

    /// Sends the master a request to accept a connection to a program.
    pub fn arrive(&self, arrival: Arrival) {
        let Arrival { stream, client, own, mut program, .. } = arrival;
        // This process is not told when the master's handlers wait for the client, so it must
        // assume that they do.
        program.handlers_wait();
        match program.take_socket() {
            Ok(bound_socket) => {
                let lent = stream.is_lent() || bound_socket.is_lent();
                let up = |id| Up::Arrival { id, client, own, lent };
                self.send_request(ProgramSide::Listens(program), bound_socket, up, Some(&stream));
            }
            Err(error) => {
                debug!("cannot take the socket of a connection to a program: {error}");
                let _ = tcp::reset_on_close(&stream);
            }
        }
    }

    /// Stores the program's side, and sends the request. If the request cannot be sent, the flow is
    /// refused, and `stream`, the client's connection, is reset when it is closed.
    fn send_request(
        &self,
        side: ProgramSide,
        bound_socket: FlowSocket<TcpStream>,
        up: impl FnOnce(u64) -> Up,
        stream: Option<&TcpStream>,
    ) {
        let duplicate = bound_socket.try_clone();
        let mut state = self.state();
        let (Ok(duplicate), Some(socket)) = (duplicate, state.socket.clone()) else {
            drop(state);
            let _ = stream.map(tcp::reset_on_close);
            return side.refuse(Failure::Reset);
        };
        let id = state.next;
        state.next += 1;
        state.list.insert(id, (side, bound_socket));
        drop(state);
        let beside: Vec<BorrowedFd<'_>> =
            stream.into_iter().map(AsFd::as_fd).chain([duplicate.as_fd()]).collect();
        if let Err(error) = seqpacket::send_with_fds(&socket, &up(id).emit(), &beside) {
            debug!("cannot send to the master: {error}");
            let _ = stream.map(tcp::reset_on_close);
            if let Some((side, _)) = self.take(id) {
                side.refuse(Failure::Reset);
            }
        }
    }

    /// Handles messages of the master, and of each successor that has the rules and offload of
    /// `promised`.
    fn run(&self, mut socket: Arc<OwnedFd>, promised: &Welcome) {
        let name = &self.connector.name;
        loop {
            self.read_messages(&socket);
            let left = {
                let mut state = self.state();
                state.socket = None;
                std::mem::take(&mut state.list)
            };
            warn!("the master {name} has ended: its flows are reset, new flows are refused");
            left.into_values().for_each(|(side, _)| side.refuse(Failure::Reset));
            socket = Arc::new(self.connector.reconnect(promised));
            self.state().socket = Some(socket.clone());
        }
    }

    fn read_messages(&self, socket: &OwnedFd) {
        let name = &self.connector.name;
        let mut bytes = [0; RECORD];
        loop {
            match seqpacket::receive(socket, &mut bytes) {
                Ok((0, _)) => break,
                Ok((length, _)) => match Down::parse(&bytes[..length]) {
                    Some(down) => self.handle(down),
                    None => break warn!("the master {name} has sent an invalid record"),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break warn!("the master {name} cannot be read: {error}"),
            }
        }
    }

    fn handle(&self, down: Down) {
        match down {
            Down::Named { id, own } => {
                if let Some((ProgramSide::Connects(held), _)) = self.state().list.get_mut(&id) {
                    held.set_local_addr(own);
                }
            }
            Down::Meet { id } => {
                let Some((side, bound_socket)) = self.take(id) else { return };
                if let Err(error) = side.meet(&bound_socket) {
                    debug!("cannot connect a socket to its program: {error}");
                    self.fail(&bound_socket);
                }
            }
            Down::Refuse { id, why } => {
                if let Some((side, _)) = self.take(id) {
                    side.refuse(why);
                }
            }
            Down::Another { id: of } => self.open_another(of),
            // Dropping the entry resets the connect. With `--via cgroup`, a retransmitted SYN
            // begins another flow instead.
            Down::Gone { id } => drop(self.take(id)),
        }
    }

    /// Answers the master's request for another flow to the program of arrival `of`: sends a socket
    /// for the flow, or the message that no further flow is possible.
    fn open_another(&self, of: u64) {
        let program = match self.state().list.get(&of) {
            Some((ProgramSide::Listens(program), _)) => program.for_another_flow(),
            _ => None,
        };
        let begun = program.and_then(|mut program| Some((program.take_socket().ok()?, program)));
        if let Some((bound_socket, program)) = begun {
            return self.send_request(
                ProgramSide::Listens(program),
                bound_socket,
                |id| Up::Another { id, of },
                None,
            );
        }
        let Some(socket) = self.state().socket.clone() else { return };
        if let Err(error) = seqpacket::send(&socket, &Up::NoOther { of }.emit(), None) {
            debug!("cannot send to the master: {error}");
        }
    }

    /// Connects a socket of the master to a closed port, so that the master sees a failure.
    fn fail(&self, bound_socket: &TcpStream) {
        let v4 = bound_socket.local_addr().is_ok_and(|at| at.is_ipv4());
        let failed = self.closed.at(v4).and_then(|at| tcp::connect_bound(bound_socket, at));
        if let Err(error) = failed {
            debug!("cannot connect a socket to a closed port: {error}");
        }
    }

    fn take(&self, id: u64) -> Option<(ProgramSide, FlowSocket<TcpStream>)> {
        self.state().list.remove(&id)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ProgramSide {
    fn meet(self, bound_socket: &TcpStream) -> io::Result<()> {
        match self {
            ProgramSide::Connects(mut held) => held.complete(bound_socket),
            ProgramSide::Listens(mut program) => program.connect(bound_socket),
        }
    }

    /// Refuses the flow of a connecting program. A client's connection to a listening program is
    /// closed elsewhere.
    fn refuse(self, why: Failure) {
        if let ProgramSide::Connects(mut held) = self {
            held.refuse(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    /// Program to which no connection is made.
    #[derive(Debug)]
    struct Listening(Option<TcpStream>);

    impl Program for Listening {
        fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
            Ok(self.0.take().ok_or(io::ErrorKind::NotConnected)?.into())
        }

        fn connect(&mut self, _socket: &TcpStream) -> io::Result<()> {
            Ok(())
        }
    }

    fn pair() -> [TcpStream; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [one, listener.accept().unwrap().0]
    }

    #[test]
    fn a_client_is_reset_while_no_master_runs() {
        let connector = Connector::new("none", Path::new("/nonexistent"));
        let closed = ClosedPorts::open().unwrap();
        let master = MasterClient { connector, state: Mutex::default(), closed };
        let ([mut client, stream], [bound_socket, _other]) = (pair(), pair());
        let [at, own] = [&client, &stream].map(|socket| socket.local_addr().unwrap());
        let program = Box::new(Listening(Some(bound_socket)));
        let stream = stream.into();
        master.arrive(Arrival { stream, client: at, own, handlers: None, program });
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
