//! Connects of wrapped programs: each waits for the answer of its far end, and then becomes the client
//! of its flow.
//!
//! ```text
//!   interposer ── Call ──▶ connection begun ──┬─ the far end answers ──▶ Held::meet: the client's leg
//!                                             └─ it does not         ──▶ Held::refuse
//! ```

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;

use mio::net::TcpStream;
use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::time::Instant;

use super::arrivals::open;
use super::flow::End;
use super::leg::Leg;
use super::target::{Route, failure};
use super::worker::Worker;

/// A program's connect that waits, as its interposer holds it.
pub trait Held: Debug + Send {
    /// What the program is told of its own end from now on.
    fn named(&mut self, own: SocketAddr);

    /// The far end is there: the program's socket becomes connected to the stream.
    ///
    /// # Errors
    /// The program has gone.
    fn meet(&mut self) -> io::Result<std::net::TcpStream>;

    /// The far end is not there, as the program is told.
    fn refuse(&mut self, why: Failure);
}

/// A connect.
#[derive(Debug)]
pub struct Call {
    /// Where to.
    pub to: Address,
    /// Who it is for.
    pub source: SocketAddr,
    /// The program's end.
    pub held: Box<dyn Held>,
}

impl Worker {
    /// Begins what a program asks for.
    pub(super) fn call(&mut self, call: Call, now: Instant) {
        self.stats.accepted += 1;
        let Call { to, source, mut held } = call;
        match self.begin_call(to, source, now) {
            Ok(key) => drop(self.calls.insert(key, held)),
            Err(why) => {
                self.stats.refused.count(why);
                held.refuse(why);
            }
        }
    }

    fn begin_call(
        &mut self,
        to: Address,
        source: SocketAddr,
        now: Instant,
    ) -> Result<usize, Failure> {
        if self.flows.is_full() || self.deadline.is_some() {
            return Err(Failure::Unreachable);
        }
        let route = match to {
            Address::Ip(to) => Route::by(&self.policies, source, to, None),
            Address::Name(name, port) => Route::by_name(&self.policies, source, &name, port)
                .ok_or(Failure::Unreachable)?
                .map(Some)?,
        };
        let route = route.ok_or(Failure::Denied)?;
        let begun = open(route, self.options, &self.teller, &self.limits, now);
        self.flows.add(begun, source, now)
    }

    /// The far end of flow `key` has answered: if a program waits for it, that is its client now.
    pub(super) fn meet(&mut self, key: usize, now: Instant) {
        let Some(mut held) = self.calls.remove(&key) else { return };
        let [_, Some(server)] = self.flows.at(key).legs() else { return };
        if let Some(own) = server.tcp().and_then(|stream| stream.local_addr().ok()) {
            held.named(own);
        }
        let met = held.meet().and_then(|stream| {
            let mut client = Leg::Tcp(TcpStream::from_std(stream));
            self.flows.watch(&mut client, key, End::Client).map(|()| client)
        });
        match met {
            Ok(client) => self.flows.at(key).set_client(client, now),
            Err(error) => {
                debug!("a program has gone: {error}");
                self.end(key, true);
            }
        }
    }

    /// The far end of flow `key` does not answer. If a program waits for it, it is told so, and the
    /// flow is over: true.
    pub(super) fn turn_down(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(mut held) = self.calls.remove(&key) else { return false };
        held.refuse(failure(error));
        self.end(key, true);
        true
    }
}
