//! Integration of Trickles ports with the loop: ready ends, and servers to be reached by TCP.

use std::net::SocketAddr;

use anyhow::Result;
use mio::Token;
use tracing::debug;
use viaduct_proto::time::Instant;

use super::seat::News;
use crate::proxy::flow::End;
use crate::proxy::leg::Leg;
use crate::proxy::outward::straight;
use crate::proxy::target::failure;
use crate::proxy::worker::Worker;

/// Rounds of driving the ports before the other flows have their turn.
const ROUNDS: usize = 8;
/// Ends that are driven in each round.
const MAX_NEWS: usize = 4096;

impl Worker {
    /// Opens the ports that policies name.
    pub(in crate::proxy) fn open_trickles(&mut self) -> Result<()> {
        let opened = self.trickles.open(self.policies.trickles());
        self.teller.trickles = self.trickles.outlets();
        opened
    }

    /// Moves all bytes that can move by Trickles.
    pub(in crate::proxy) fn trickle(&mut self, now: Instant) {
        for _ in 0..ROUNDS {
            self.trickles.turn(now);
            let mut moved = false;
            for _ in 0..MAX_NEWS {
                let Some((Token(token), news)) = self.trickles.poll_news() else { break };
                let end = if token % 2 == 0 { End::Client } else { End::Server };
                match news {
                    News::Ready => self.drive(token / 2, end, true, true, now),
                    News::PlainTcp(to) => self.go_plain(token / 2, to, now),
                }
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Continues flow `key` over the kernel's TCP, to `to`.
    fn go_plain(&mut self, key: usize, to: SocketAddr, now: Instant) {
        let Some(flow) = self.flows.get(key) else { return };
        // The flow was given up meanwhile.
        if flow.broken().is_some() {
            return;
        }
        let begun = straight(to, self.options, self.policies.far.haul(to.ip()));
        let watched = begun.and_then(|server| {
            let mut server = Leg::Tcp(server.into());
            self.flows.watch(&mut server, key, End::Server)?;
            Ok(server)
        });
        match watched {
            Ok(server) => {
                self.flows.at(key).go_plain(server);
                self.drive(key, End::Server, false, false, now);
            }
            Err(error) => {
                debug!("connect to {to}: {error}");
                if let Some(through) = self.flows.at(key).through() {
                    through.unconnected(failure(&error), now);
                }
                // The handlers may know another way.
                self.drive(key, End::Client, false, false, now);
            }
        }
    }
}
