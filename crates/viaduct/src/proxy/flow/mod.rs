//! A flow: the client's end, the one that goes on, and what stands between them.
//!
//! | file | |
//! |---|---|
//! | here | what it is made of, and what is asked of it |
//! | `beginning` | how it begins |
//! | `halves` | how its halves come about |
//! | `words` | what is said before all else |
//! | `moving` | how bytes move, and how it ends |
//! | `breaking` | what is still said when an end broke |

mod beginning;
mod breaking;
mod halves;
mod moving;
mod words;

use std::collections::VecDeque;
use std::net::SocketAddr;

use mio::net::TcpStream;
use viaduct_proto::flow::{Address, BottomId, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;
use viaduct_sys::tcp::{self, Mirrored};

use self::breaking::Breaking;
pub use self::words::Heard;
use super::account::Account;
use super::agreeing::Undecided;
use super::leg::Leg;
use super::liveness::{DeadPeerLimits, Liveness};
use super::onward::Onward;
use super::pipes::Pipes;
use super::relay::Relay;
use super::through::{Stage, Through};

/// Which end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client = 0,
    Server = 1,
}

/// What stands between the two ends.
#[derive(Debug)]
pub enum Middle {
    /// Nothing: two connections are spliced.
    Relay(Relay),
    /// A chain of handlers, or ends that cannot be spliced.
    Through(Box<Through>),
}

/// What all flows of a loop share.
#[derive(Debug)]
pub struct Shared {
    /// Pipes that no flow uses now.
    pub pipes: Pipes,
    /// Where bytes are read to.
    pub scratch: Box<[u8]>,
}

/// A flow. Its client is missing while it is early, its server while the client says where to.
#[derive(Debug)]
pub struct Flow {
    /// The client, the server.
    legs: [Option<Leg>; 2],
    /// What goes to each end before all else.
    first: [Vec<u8>; 2],
    /// Nothing follows what goes to the server before all else.
    shuts: bool,
    asked: Option<Asked>,
    /// Who it is for.
    source: SocketAddr,
    /// Where its second half goes, when it was begun.
    to: Option<Address>,
    /// The address that it begins at, if not our own.
    from: Option<SocketAddr>,
    /// Tells it from a later flow of the same number.
    pub id: u64,
    /// Further addresses of the name that its client has said.
    others: VecDeque<SocketAddr>,
    /// How it goes on.
    by: Onward,
    connected: bool,
    /// A program's connection that is still on its way: it becomes the client.
    coming: Option<Leg>,
    /// Further connections of its handlers, by the loop's numbers.
    pub wires: Vec<(usize, BottomId)>,
    /// What waits for its second half has heard of it.
    risen: bool,
    /// Its ends are reset when they are closed, unless they have ended well: so they are when this
    /// process is killed.
    breaks: bool,
    /// Both ends have been there.
    opened: bool,
    /// Why there will be no server, if that is so.
    broken: Option<Failure>,
    /// The end that broke, where what stands between does not know.
    broken_end: Option<End>,
    /// One of its ends broke, and the other has not yet all that it said.
    breaking: Option<Breaking>,
    middle: Middle,
    /// What stands between its ends is agreed on with the far end.
    undecided: Option<Undecided>,
    /// Its connection, which it does not need: its handlers go over one of several flows.
    spare: Option<Leg>,
    /// Bits a second each way, at most.
    rate: Option<u64>,
    /// Bytes that the client said behind where it wants to go, until they are counted.
    behind: u64,
    /// Whether the loop is told when the client has room.
    room_watched: bool,
    /// What its program has set on its own end.
    pub mirrored: Mirrored,
    /// What is known of the peers of its two ends.
    liveness: [Liveness; 2],
    /// When its ends were last looked for.
    pub looked: Option<Instant>,
    /// For the access log.
    pub account: Account,
    /// When its second half was begun.
    pub begun: Instant,
    /// When it last moved, or began.
    pub moved: Instant,
    /// When the loop is to drive it, whatever happens.
    pub alarm: Option<Instant>,
}

/// A second half that was begun.
#[derive(Debug)]
pub struct Begun {
    /// Its end.
    pub server: Leg,
    /// What stands before it.
    pub middle: Middle,
    /// That is agreed on with its far end, when it is there.
    pub undecided: Option<Undecided>,
    /// What goes to it before all else.
    pub first: Vec<u8>,
    /// Where to.
    pub to: Address,
    /// From where, if not from our own address.
    pub from: Option<SocketAddr>,
    /// How it goes on.
    pub by: Onward,
    /// Bits a second each way, at most.
    pub rate: Option<u64>,
}

/// What a client says of where it wants to go.
#[derive(Debug)]
pub struct Asked {
    /// What it has said.
    pub preface: Preface,
    /// Its connection.
    pub tuple: Tuple,
    /// What it has said since.
    pub bytes: Vec<u8>,
    /// Whether the connection was begun, and the client waits for the answer.
    pub begun: bool,
}

/// What a drive has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that passed from the client, and to it.
    pub bytes: [u64; 2],
    /// Both directions have ended.
    pub done: bool,
    /// There is more to move, after the other flows had their turn.
    pub more: bool,
}

impl Flow {
    /// Who it is for.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Who it is for, if a hop before this one has told.
    pub fn set_source(&mut self, source: Option<SocketAddr>) {
        self.source = source.unwrap_or(self.source);
    }

    /// What its client says, while it has not said where to.
    pub fn asked(&mut self) -> Option<&mut Asked> {
        self.asked.as_mut()
    }

    /// The client has its answer: nothing is asked any more.
    pub fn answered(&mut self) {
        self.asked = None;
    }

    /// Its two ends, as far as they are there: the client, the server.
    pub fn legs(&mut self) -> [Option<&mut Leg>; 2] {
        self.legs.each_mut().map(Option::as_mut)
    }

    /// What its far end, or whoever goes there for it, sees it come from.
    pub fn own_name(&mut self, now: Instant) -> Option<SocketAddr> {
        match &mut self.middle {
            Middle::Through(through) => through.own_name(now),
            Middle::Relay(_) => self.legs[1].as_ref()?.names().map(|(own, _)| own),
        }
    }

    /// Looks whether its ends are still there; for flows that last.
    pub fn look_for_ends(&mut self, silence: DeadPeerLimits, now: Instant) {
        self.looked = Some(now);
        // The program has said itself when its far end is given up.
        let decided = self.mirrored.decides_liveness();
        for (end, (leg, liveness)) in self.legs.iter().zip(&mut self.liveness).enumerate() {
            if let Some(stream) = leg.as_ref().and_then(Leg::tcp)
                && !(decided && end == End::Server as usize)
            {
                liveness.look(stream, silence);
            }
        }
        if let Middle::Through(through) = &mut self.middle
            && !decided
        {
            through.look_for_ends(silence);
        }
    }

    /// Has its connections to the network have what its program has set on its own end.
    pub fn mirror(&mut self, mirrored: Mirrored) {
        self.mirrored = mirrored;
        if let Some(stream) = self.legs[End::Server as usize].as_ref().and_then(Leg::tcp) {
            mirrored.apply_later(stream);
        }
        if let Middle::Through(through) = &mut self.middle {
            through.mirror(mirrored);
        }
    }

    /// A connection to where it goes that it has no use for.
    pub fn spare(&mut self) -> Option<(Address, Leg)> {
        self.to.clone().zip(self.spare.take())
    }

    /// Whether the server has answered.
    pub fn is_connected(&self) -> bool {
        self.connected
    }

    /// Whether both ends are there, for the first time.
    pub fn opens(&mut self) -> bool {
        let both = self.connected && self.has_client();
        both && !std::mem::replace(&mut self.opened, true)
    }

    /// Whether its second half can be asked at any time whether it is there.
    pub fn may_be_asked(&self) -> bool {
        matches!(self.legs[1], Some(Leg::Session(_) | Leg::Trickles(_)))
    }

    /// Why there will be no server, if that is so.
    pub fn broken(&self) -> Option<Failure> {
        self.broken
    }

    /// The server's answer was no, or there was none.
    pub fn set_broken(&mut self, why: Failure) {
        self.broken = Some(why);
    }

    /// Where its second half goes, as people read it.
    pub fn destination(&self) -> String {
        self.to.as_ref().map_or_else(|| "nowhere yet".to_owned(), Address::to_string)
    }

    /// The address that one more connection to `to` begins at, if not our own: that of its first one, where that
    /// goes there too. Its port is that one's.
    pub fn from(&self, to: &Address) -> Option<SocketAddr> {
        let from = self.from.filter(|_| self.to.as_ref() == Some(to))?;
        Some(SocketAddr::new(from.ip(), 0))
    }

    /// How it goes on.
    pub fn by(&self) -> &Onward {
        &self.by
    }

    /// Whether its client has come.
    pub fn has_client(&self) -> bool {
        self.legs[0].is_some()
    }

    /// How far its second half has come.
    pub fn stage(&self) -> Stage {
        match &self.middle {
            // It ends when all is said.
            _ if self.breaking.is_some() => Stage::Open,
            // Its handlers may have gone by another connection than its own.
            Middle::Through(through) => through.stage(),
            Middle::Relay(_) if !self.connected => Stage::Opening,
            Middle::Relay(_) => Stage::Open,
        }
    }

    /// Whether its second half is there, for the first time.
    pub fn rises(&mut self) -> bool {
        let is_open = self.stage() == Stage::Open;
        self.connected |= is_open;
        is_open && !std::mem::replace(&mut self.risen, true)
    }

    /// Tells a client that waits for its second half that it is there.
    pub fn tell_client(&self) {
        if let Some(client) = &self.legs[0] {
            client.accept();
        }
    }

    /// Whether its second half has been there.
    pub fn has_risen(&self) -> bool {
        self.risen
    }

    /// Has its ends break should this process be killed, so that nobody takes what has come for all:
    /// a program would otherwise see an end that its far end never meant.
    pub fn break_unless_ended(&mut self) {
        self.breaks = true;
        self.ends().for_each(|stream| drop(tcp::reset_on_close(stream)));
    }

    /// It has ended well: what was written still goes out.
    pub fn end_well(&mut self) {
        if self.breaks {
            self.ends().for_each(|stream| drop(tcp::end_on_close(stream)));
        }
    }

    fn ends(&self) -> impl Iterator<Item = &TcpStream> {
        self.legs.iter().chain([&self.coming]).flatten().filter_map(Leg::tcp)
    }

    /// Its chain of handlers, if it has one.
    pub fn through(&mut self) -> Option<&mut Through> {
        match &mut self.middle {
            Middle::Relay(_) => None,
            Middle::Through(through) => Some(through),
        }
    }

    /// Whether it is there for other flows alone.
    pub fn serves_others(&mut self) -> bool {
        self.through().is_some_and(|through| through.is_alone())
    }

    /// What stands between its ends.
    pub fn middle(&mut self) -> &mut Middle {
        &mut self.middle
    }

    /// Takes it apart: its chain, and its leg to the network.
    pub fn into_chain(mut self) -> Option<(Through, Option<Leg>)> {
        match self.middle {
            Middle::Relay(_) => None,
            Middle::Through(through) => Some((*through, self.legs[1].take())),
        }
    }
}
