//! State shared by a factory's chains: the trunks, and the branches on each.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use crate::flow::{Address, Failure};
use crate::keys::Entropy;
use crate::tunnel::{Event, SessionId, Settings, Tunnel};

/// State of a factory.
pub(super) struct Shared {
    settings: Settings,
    /// Random prefix of all keys, so that other chains cannot guess them.
    secret: [u8; 16],
    next: u64,
    lines: BTreeMap<u64, Line>,
    branches: BTreeMap<u64, Seat>,
}

/// State of a trunk: its connection, and the streams on it.
pub(super) struct Line {
    pub(super) tunnel: Tunnel,
    pub(super) link: Option<u32>,
    /// Destination; `None` if the trunk was accepted.
    pub(super) to: Option<Address>,
    /// Local address that the connection must have, if any.
    pub(super) from: Option<IpAddr>,
    pub(super) names: (Option<Address>, Option<Address>),
    /// Branch of each session.
    sessions: BTreeMap<SessionId, u64>,
    /// Branches that wait for the link.
    pub(super) waiting: Vec<u64>,
}

/// State of a branch as its trunk sees it: events to be handled.
#[derive(Debug, Default)]
pub(super) struct Seat {
    pub(super) trunk: u64,
    pub(super) id: Option<SessionId>,
    pub(super) accepted: bool,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) finished: bool,
    pub(super) failed: Option<Failure>,
}

/// Message to a spawned chain: its role and number.
pub(super) enum Word {
    Trunk(u64),
    Branch(u64),
}

impl Word {
    pub(super) fn emit(&self) -> Vec<u8> {
        let (kind, number) = match self {
            Word::Trunk(number) => (b't', number),
            Word::Branch(number) => (b'b', number),
        };
        [&[kind][..], &number.to_be_bytes()].concat()
    }

    pub(super) fn parse(word: &[u8]) -> Option<Word> {
        let (kind, number) = word.split_first()?;
        let number = u64::from_be_bytes(number.try_into().ok()?);
        match kind {
            b't' => Some(Word::Trunk(number)),
            b'b' => Some(Word::Branch(number)),
            _ => None,
        }
    }
}

impl Shared {
    pub(super) fn new(settings: Settings, entropy: &Entropy) -> Shared {
        let mut secret = [0; 16];
        entropy(&mut secret);
        let (lines, branches) = (BTreeMap::new(), BTreeMap::new());
        Shared { settings, secret, next: 1, lines, branches }
    }

    /// Key by which a chain is woken.
    pub(super) fn key(&self, word: &Word) -> Vec<u8> {
        [&self.secret[..], &word.emit()].concat()
    }

    /// Adds a trunk and returns its number.
    pub(super) fn add_line(&mut self, to: Option<Address>, from: Option<IpAddr>) -> u64 {
        let number = self.number();
        // The number is sent to the other end, the secret is not.
        let tunnel = Tunnel::new(self.settings.clone(), number);
        let (sessions, waiting, names) = (BTreeMap::new(), Vec::new(), (None, None));
        let line = Line { tunnel, link: None, to, from, names, sessions, waiting };
        self.lines.insert(number, line);
        number
    }

    /// Trunk to `to` from `from` that has room for one more flow, if any.
    pub(super) fn line_to(&self, to: &Address, from: Option<IpAddr>) -> Option<u64> {
        let most = self.settings.sessions as usize;
        let has_room = |line: &Line| line.sessions.len() + line.waiting.len() < most;
        let is_it = |line: &Line| line.to.as_ref() == Some(to) && line.from == from;
        let goes = |(_, line): &(&u64, &Line)| is_it(line) && has_room(line);
        self.lines.iter().find(goes).map(|(number, _)| *number)
    }

    pub(super) fn line(&mut self, trunk: u64) -> Option<&mut Line> {
        self.lines.get_mut(&trunk)
    }

    /// Removes a trunk, and fails its branches with `why`; returns those.
    pub(super) fn remove_line(&mut self, trunk: u64, why: Failure) -> Vec<u64> {
        self.lines.remove(&trunk);
        let on_it = self.branches.iter_mut().filter(|(_, seat)| seat.trunk == trunk);
        on_it
            .map(|(branch, seat)| {
                seat.failed.get_or_insert(why);
                *branch
            })
            .collect()
    }

    /// Adds a branch on `trunk` and returns its number.
    pub(super) fn add_branch(&mut self, trunk: u64, id: Option<SessionId>) -> u64 {
        let number = self.number();
        self.branches.insert(number, Seat { trunk, id, ..Seat::default() });
        if let (Some(line), Some(id)) = (self.lines.get_mut(&trunk), id) {
            line.sessions.insert(id, number);
        }
        number
    }

    /// Branch, and the state of its trunk if that still exists.
    pub(super) fn branch(&mut self, branch: u64) -> Option<(&mut Seat, Option<&mut Line>)> {
        let seat = self.branches.get_mut(&branch)?;
        let line = self.lines.get_mut(&seat.trunk);
        Some((seat, line))
    }

    /// Removes a branch.
    pub(super) fn remove_branch(&mut self, branch: u64) {
        let Some(seat) = self.branches.remove(&branch) else { return };
        if let Some(line) = self.lines.get_mut(&seat.trunk) {
            line.waiting.retain(|waits| *waits != branch);
            seat.id.map(|id| line.sessions.remove(&id));
        }
    }

    /// Returns whether no branch is on a trunk.
    pub(super) fn is_idle(&self, trunk: u64) -> bool {
        self.branches.values().all(|seat| seat.trunk != trunk)
    }

    /// Opens sessions for branches that wait for the link of `trunk`; returns those that have
    /// one now.
    pub(super) fn open_waiting(&mut self, trunk: u64) -> Vec<u64> {
        let Some(line) = self.lines.get_mut(&trunk) else { return Vec::new() };
        let (Some(to), mut opened) = (line.to.clone(), Vec::new()) else { return Vec::new() };
        while let Some(&branch) = line.waiting.first() {
            let Some(id) = line.tunnel.open(to.clone(), None) else { break };
            line.waiting.remove(0);
            line.sessions.insert(id, branch);
            if let Some(seat) = self.branches.get_mut(&branch) {
                seat.id = Some(id);
            }
            opened.push(branch);
        }
        opened
    }

    /// Handles the events of a trunk's tunnel; returns the branches to be woken, and those to
    /// be spawned.
    pub(super) fn listen(&mut self, trunk: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut woken, mut new) = (Vec::new(), Vec::new());
        while let Some(event) = self.lines.get_mut(&trunk).and_then(|l| l.tunnel.poll_event()) {
            let (id, note): (_, fn(&mut Seat)) = match event {
                Event::Opened { id, .. } => {
                    new.push(self.add_branch(trunk, Some(id)));
                    continue;
                }
                Event::LinkUp(_) | Event::LinkDown(..) => {
                    woken.extend(self.open_waiting(trunk));
                    continue;
                }
                Event::Accepted(id) => (id, |seat| seat.accepted = true),
                Event::Readable(id) => (id, |seat| seat.readable = true),
                Event::Writable(id) => (id, |seat| seat.writable = true),
                Event::Finished(id) => (id, |seat| seat.finished = true),
                Event::Reset(id, why) => {
                    self.note(trunk, id, &mut woken, |seat| seat.failed = Some(why));
                    continue;
                }
            };
            self.note(trunk, id, &mut woken, note);
        }
        (woken, new)
    }

    fn note(
        &mut self,
        trunk: u64,
        id: SessionId,
        woken: &mut Vec<u64>,
        note: impl FnOnce(&mut Seat),
    ) {
        let branch = self.lines.get(&trunk).and_then(|line| line.sessions.get(&id)).copied();
        if let Some((branch, seat)) = branch.and_then(|b| Some((b, self.branches.get_mut(&b)?))) {
            note(seat);
            if !woken.contains(&branch) {
                woken.push(branch);
            }
        }
    }

    pub(super) fn names(&self, trunk: u64) -> (Option<Address>, Option<Address>) {
        self.lines.get(&trunk).map(|line| line.names.clone()).unwrap_or_default()
    }

    /// All trunks, for display.
    pub(super) fn trunks(&self) -> impl Iterator<Item = &Line> {
        self.lines.values()
    }

    /// Description of a trunk, for people.
    pub(super) fn about(&self, trunk: u64) -> Option<String> {
        self.lines.get(&trunk).map(Line::to_string)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.tunnel.stats();
        match (&self.to, &self.names.1) {
            (Some(to), _) => write!(f, "to {to}: ")?,
            (None, Some(peer)) => write!(f, "from {peer}: ")?,
            (None, None) => {}
        }
        write!(
            f,
            "{} flows on one connection, {} so far, {} bytes sent, {} received",
            stats.open,
            stats.opened + stats.accepted,
            stats.sent,
            stats.received
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::testing::shell;

    #[test]
    fn a_trunk_that_is_full_is_not_waited_for() {
        let settings = Settings { sessions: 2, ..Settings::default() };
        let mut shared = Shared::new(settings, &shell().entropy);
        let to = Address::Name("far".to_owned(), 80);
        let first = shared.add_line(Some(to.clone()), None);
        for _ in 0..2 {
            assert_eq!(shared.line_to(&to, None), Some(first));
            let branch = shared.add_branch(first, None);
            shared.line(first).unwrap().waiting.push(branch);
        }
        assert_eq!(shared.line_to(&to, None), None);
        let second = shared.add_line(Some(to.clone()), None);
        assert_eq!(shared.line_to(&to, None), Some(second));
        let left = shared.line(first).unwrap().waiting[0];
        shared.remove_branch(left);
        assert_eq!(shared.line_to(&to, None), Some(first));
    }
}
