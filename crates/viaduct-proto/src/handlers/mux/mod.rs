//! `mux`: flows of one program to one destination share a connection, and its congestion
//! control state. The protocol is that of the [tunnel](crate::tunnel) ("Taming the LFN", slides
//! 13 to 20).
//!
//! ```text
//!   flow ── Branch ─┐                                       ┌─ Branch ── flow
//!   flow ── Branch ─┼─ Shared ── Trunk ═ connection ═ Trunk ── Shared ─┼─ Branch ── flow
//!   flow ── Branch ─┘  one Tunnel each                      └─ Branch ── flow
//! ```
//!
//! Each flow of the program is a *branch*, in a chain of its own. The connection belongs to a
//! *trunk*, a chain without an application. It is spawned for the first branch to a
//! destination, and closed shortly after the last branch. At the other end the accepted
//! connection becomes the trunk, and spawns a branch for each session. Handlers above `mux` see
//! each flow, and those below it the shared connection.
//!
//! `shared` has the trunks and their branches; `trunk` and `branch` are the two roles of a
//! handler.

mod branch;
mod shared;
mod trunk;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::bundle::{buffer, time};
use super::{Shell, early::End};
use crate::flow::{
    About, Address, Arguments, Context, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::time::Duration;
use crate::tunnel::Settings;
use branch::Branch;
use shared::Shared;
use trunk::Trunk;

const TICK: Timer = Timer(0);
/// Maximum number of trunks in a report.
const TOLD: usize = 64;

struct MuxFactory(Arc<Mutex<Shared>>);

/// Handler of one chain.
struct Mux {
    shared: Arc<Mutex<Shared>>,
    /// Local address that the flow must have, if any.
    from: Option<IpAddr>,
    part: Part,
}

/// Role of a handler.
enum Part {
    /// None yet.
    Fresh,
    /// A flow on a shared connection.
    Branch(Branch),
    /// The shared connection.
    Trunk(Trunk),
}

pub(super) fn about() -> About {
    About::new("mux", "has the flows of a program to one place share a connection")
        .setting("buffer", "BYTES", "bytes that the other end may send ahead; 8M by default")
        .setting("silence", "TIME", "how long the connection may be silent; for ever by default")
        .both_ends()
}

pub(super) fn build(arguments: &mut Arguments, shell: &Shell) -> Result<Arc<dyn Factory>, String> {
    let silence = arguments.take("silence", "a time such as 30s, 5m or 2h", time)?;
    let settings = Settings {
        limit: buffer(arguments)? as u64,
        // The transport reports a broken connection itself.
        silence: silence.unwrap_or(Duration::from_secs(10 * 365 * 24 * 60 * 60)),
        ..Settings::default()
    };
    let shared = Shared::new(settings, &shell.entropy);
    Ok(Arc::new(MuxFactory(Arc::new(Mutex::new(shared)))))
}

impl Factory for MuxFactory {
    fn name(&self) -> &'static str {
        "mux"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Mux { shared: self.0.clone(), from: None, part: Part::Fresh })
    }

    fn shares(&self) -> bool {
        true
    }

    fn reaches(&self, to: &Address) -> bool {
        lock(&self.0).line_to(to, None).is_some()
    }

    fn state(&self) -> Option<String> {
        let shared = lock(&self.0);
        let mut text = String::new();
        for trunk in shared.trunks().take(TOLD) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{trunk}");
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

impl Handler for Mux {
    fn bind(&mut self, _cx: &mut Context<'_>, at: Address) {
        self.from = match at {
            Address::Ip(at) => Some(at.ip()),
            Address::Name(..) => None,
        };
    }

    fn connect(&mut self, cx: &mut Context<'_>, to: Address) {
        let branch = Branch::connecting(cx, &mut lock(&self.shared), to, self.from);
        self.part = Part::Branch(branch);
    }

    fn spawned(&mut self, cx: &mut Context<'_>, word: &[u8]) {
        let shared = &mut lock(&self.shared);
        self.part = match shared::Word::parse(word) {
            Some(shared::Word::Trunk(number)) => {
                Trunk::connecting(cx, shared, number).map_or(Part::Fresh, Part::Trunk)
            }
            Some(shared::Word::Branch(number)) => {
                Part::Branch(Branch::accepted(cx, shared, number))
            }
            None => Part::Fresh,
        };
    }

    fn unspawned(&mut self, cx: &mut Context<'_>, word: &[u8]) {
        match (&mut self.part, shared::Word::parse(word)) {
            // Fails all branches that wait for the trunk, and removes it so that no more do.
            (Part::Branch(_), Some(shared::Word::Trunk(number))) => {
                let shared = &mut lock(&self.shared);
                for branch in shared.remove_line(number, Failure::Unreachable) {
                    cx.wake(&shared.key(&shared::Word::Branch(branch)));
                }
            }
            (Part::Trunk(trunk), Some(shared::Word::Branch(number))) => {
                trunk.refuse(cx, &mut lock(&self.shared), number);
            }
            _ => {}
        }
    }

    fn accepted(&mut self, cx: &mut Context<'_>, from: Output) {
        let trunk = Trunk::accepted(cx, &mut lock(&self.shared), from);
        self.part = Part::Trunk(trunk);
    }

    fn woken(&mut self, cx: &mut Context<'_>, _key: &[u8]) {
        let shared = &mut lock(&self.shared);
        match &mut self.part {
            Part::Branch(branch) => branch.settle(cx, shared),
            Part::Trunk(trunk) => trunk.settle(cx, shared),
            Part::Fresh => {}
        }
    }

    fn abandoned(&mut self, cx: &mut Context<'_>) {
        let shared = &mut lock(&self.shared);
        match &mut self.part {
            Part::Branch(branch) => branch.leave(cx, shared),
            Part::Trunk(trunk) => trunk.broke(cx, shared, Failure::Reset),
            Part::Fresh => {}
        }
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        match &mut self.part {
            Part::Branch(branch) => branch.write(cx, &mut lock(&self.shared), data),
            Part::Trunk(_) | Part::Fresh => false,
        }
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        if let (Part::Branch(branch), Half::Write) = (&mut self.part, half) {
            branch.end(cx, &mut lock(&self.shared), End::Shutdown);
        }
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        match &mut self.part {
            Part::Branch(branch) => branch.end(cx, &mut lock(&self.shared), End::Close),
            Part::Trunk(_) | Part::Fresh => cx.output(FIRST).close(),
        }
    }

    fn held(&self) -> u64 {
        match &self.part {
            Part::Branch(branch) => branch.held(&mut lock(&self.shared)),
            Part::Trunk(_) | Part::Fresh => 0,
        }
    }

    fn may_avail(&mut self, cx: &mut Context<'_>, may: bool) {
        if let Part::Branch(branch) = &mut self.part {
            branch.may_avail(cx, &mut lock(&self.shared), may);
        }
    }

    fn getsockname(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names(cx).0
    }

    fn getpeername(&mut self, cx: &mut Context<'_>) -> Option<Address> {
        self.names(cx).1
    }

    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        if let Part::Trunk(trunk) = &mut self.part {
            trunk.connected(cx, &mut lock(&self.shared), result);
        }
    }

    fn avail(&mut self, cx: &mut Context<'_>, _from: Output, data: Bytes) -> bool {
        match &mut self.part {
            Part::Trunk(trunk) => trunk.hear(cx, &mut lock(&self.shared), &data),
            Part::Branch(_) | Part::Fresh => false,
        }
    }

    fn finished(&mut self, cx: &mut Context<'_>, from: Output) {
        self.failed(cx, from, Failure::Reset);
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        if let Part::Trunk(trunk) = &mut self.part {
            trunk.broke(cx, &mut lock(&self.shared), why);
        }
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        if let Part::Trunk(trunk) = &mut self.part {
            trunk.set_room(cx, &mut lock(&self.shared), may);
        }
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        if let Part::Trunk(trunk) = &mut self.part {
            trunk.timeout(cx, &mut lock(&self.shared));
        }
    }

    /// Answered with the state of the flow's shared connection.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        match &self.part {
            Part::Branch(branch) if to == "mux" => {
                Some(lock(&self.shared).about(branch.trunk())?.into_bytes())
            }
            Part::Branch(_) => None,
            Part::Trunk(_) | Part::Fresh => cx.output(FIRST).control(to, request),
        }
    }
}

impl Mux {
    /// Local and remote address of the flow: those of the shared connection.
    fn names(&self, cx: &mut Context<'_>) -> (Option<Address>, Option<Address>) {
        match &self.part {
            Part::Branch(branch) => lock(&self.shared).names(branch.trunk()),
            Part::Trunk(_) | Part::Fresh => {
                (cx.output(FIRST).getsockname(), cx.output(FIRST).getpeername())
            }
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
