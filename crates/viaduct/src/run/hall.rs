//! The process that keeps the hall where wrapped programs listen ([`viaduct_sys::hall`]): it lives in that
//! network namespace, and makes sockets there for the master, which stays where it is.
//!
//! ```text
//!   master ── "listener [::]:80", "place 192.0.2.9:4711" ──▶ viaduct run, as the hall's keeper
//!          ◀───────────── an error's number, a socket ─────┘
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use viaduct_sys::hall::{self, Gone, Lookup, Loop, Own, Purpose, Way, Ways};
use viaduct_sys::{inherit, memory, records};

/// Bytes of an answer that is a sentence, at most.
const MOST: usize = 512;
/// Bytes of a question: one that says where datagrams can go has many words.
const MAX_QUESTION: usize = 32 << 10;

/// Begins the keeper's first answer; a byte for each descriptor beside it follows. Any other is a sentence that says
/// why there is no hall.
const READY: u8 = b'!';
/// The way out, the loopback interface of IPv6, notice of sockets that are gone, and what looks them up.
const OUT: u8 = b'o';
const V6: u8 = b'6';
const GONE: u8 = b'g';
const LOOKUP: u8 = b'l';

/// The way to it.
#[derive(Debug)]
pub struct Hall {
    socket: OwnedFd,
    asking: Mutex<()>,
    keeper: u32,
}

impl Hall {
    /// Opens one; it is gone when this is.
    ///
    /// # Errors
    /// The kernel gives this user no network namespace: why.
    pub fn open() -> Result<Hall> {
        Hall::start(false).map(|(hall, _)| hall)
    }

    /// Opens one for datagrams; what leaves it and comes in passes its way out, and its loopback interface where
    /// there is IPv6.
    ///
    /// # Errors
    /// As [`Hall::open`]'s; or there can be no way out.
    pub fn open_for_datagrams() -> Result<(Hall, Ways)> {
        let (hall, given) = Hall::start(true)?;
        let (mut out, mut v6, mut gone, mut lookup) = (None, None, None, None);
        for (which, fd) in given {
            match which {
                OUT => out = Some(Way::of(fd)),
                V6 => v6 = Some(Loop::of(fd)),
                GONE => gone = Some(Gone::of(fd)),
                LOOKUP => lookup = Some(Lookup::of(fd)),
                _ => {}
            }
        }
        let out = out.context("the keeper of a hall gave no way out")?;
        Ok((hall, Ways { out, v6, gone, lookup }))
    }

    /// What the keeper gives, and what each is.
    fn start(datagrams: bool) -> Result<(Hall, Vec<(u8, OwnedFd)>)> {
        let (ours, theirs) = records::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", &format!("--hall-fd={}", theirs.as_raw_fd())]);
        if datagrams {
            command.arg("--hall-datagrams");
        }
        inherit::keep(&mut command, &[theirs.as_fd()]);
        // What the terminal sends is not for it, nor does it keep anybody's pipe.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let keeper = command.spawn().context("start the keeper of a hall")?.id();
        drop(theirs);
        let mut answer = [0; MOST];
        let received = records::receive_beside(&ours, &mut answer)?;
        match received.length {
            _ if received.lost_descriptors => bail!("{}", rustix::io::Errno::MFILE),
            0 => bail!("the keeper of a hall has ended"),
            length if answer[0] == READY => {
                let given = answer[1..length].iter().copied().zip(received.beside).collect();
                Ok((Hall { socket: ours, asking: Mutex::default(), keeper }, given))
            }
            length => bail!("{}", String::from_utf8_lossy(&answer[..length])),
        }
    }

    /// A socket in there, not blocking.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn socket(&self, purpose: Purpose, at: SocketAddr) -> io::Result<OwnedFd> {
        self.ask(&format!("{} {at}", words(purpose)))
    }

    /// A socket of UDP in there, of IPv6 or of IPv4, which blocks.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn datagram_socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.ask(DATAGRAMS[usize::from(v6)])
    }

    /// Has datagrams in there leave to where this host's can go.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reach(&self, own: &Own) -> io::Result<()> {
        let question = [REACH, own.text().as_bytes()].concat();
        self.put(&question).map(drop)
    }

    fn ask(&self, question: &str) -> io::Result<OwnedFd> {
        // Where none came it was sent, and there was no room for it here.
        self.put(question.as_bytes())?.ok_or(rustix::io::Errno::MFILE.into())
    }

    fn put(&self, question: &[u8]) -> io::Result<Option<OwnedFd>> {
        let _one_at_a_time = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        records::send(&self.socket, question, None)?;
        let mut answer = [0; MOST];
        let (length, beside) = records::receive(&self.socket, &mut answer)?;
        let errno = answer[..length].first_chunk().copied().map(i32::from_ne_bytes);
        match (errno, beside) {
            (Some(0), socket) => Ok(socket),
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, _) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The inodes of those that listen in there.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn listening(&self) -> io::Result<BTreeSet<u64>> {
        hall::listening(self.keeper)
    }

    /// The ports of those of UDP.
    ///
    /// # Errors
    /// The keeper has ended.
    pub fn udp_ports(&self) -> io::Result<BTreeSet<u16>> {
        hall::udp_ports(self.keeper)
    }
}

/// Keeps a hall, or one for datagrams, for as long as somebody is at the other end of `fd`.
pub fn keep(fd: RawFd, datagrams: bool) -> Result<()> {
    let socket = inherit::take(fd).context("take the master's socket")?;
    drop(inherit::rest().context("look at what is open")?);
    let entered = match datagrams {
        true => hall::enter_for_datagrams().map(Some),
        false => hall::enter().map(|()| None),
    };
    match &entered {
        Ok(None) => records::send(&socket, &[READY], None)?,
        Ok(Some(ways)) => {
            let v6 = ways.v6.as_ref().map(|v6| (V6, v6.as_fd()));
            let gone = ways.gone.as_ref().map(|gone| (GONE, gone.as_fd()));
            let lookup = ways.lookup.as_ref().map(|lookup| (LOOKUP, lookup.as_fd()));
            let given = [Some((OUT, ways.out.as_fd())), v6, gone, lookup].into_iter().flatten();
            let (kinds, fds): (Vec<u8>, Vec<_>) = given.unzip();
            records::send_beside(&socket, &[&[READY], &kinds[..]].concat(), &fds)?;
        }
        Err(error) => return Ok(records::send(&socket, error.to_string().as_bytes(), None)?),
    }
    // Where it cannot be, more memory is held.
    let _ = memory::let_go_of_start();
    let mut question = [0; MAX_QUESTION];
    let mut reached = Own::default();
    loop {
        let length = match records::receive(&socket, &mut question) {
            Ok((0, _)) => return Ok(()),
            Ok((length, _)) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(own) = question[..length].strip_prefix(REACH) {
            let own = str::from_utf8(own).ok().and_then(Own::parse);
            let done = own.ok_or(io::ErrorKind::InvalidInput.into()).and_then(|own| {
                let before = std::mem::replace(&mut reached, own);
                reached.apply(&before)
            });
            records::send(&socket, &number(&done).to_ne_bytes(), None)?;
            continue;
        }
        let made = match parse(&question[..length]) {
            Some((purpose, at)) => hall::socket(purpose, at),
            None => match DATAGRAMS.iter().position(|of| question[..length] == *of.as_bytes()) {
                Some(v6) => hall::datagram_socket(v6 == 1),
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
        };
        let beside = made.as_ref().ok().map(AsFd::as_fd);
        records::send(&socket, &number(&made).to_ne_bytes(), beside)?;
    }
}

fn number<T>(done: &io::Result<T>) -> i32 {
    let invalid = rustix::io::Errno::INVAL.raw_os_error();
    done.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(invalid))
}

/// Begins what says where datagrams can go.
const REACH: &[u8] = b"reach ";
/// Ask for a socket of UDP, of IPv4 and of IPv6.
const DATAGRAMS: [&str; 2] = ["datagrams4", "datagrams6"];

fn words(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Listener { v6: false, .. } => "listener4",
        Purpose::Listener { v6: true, alone: false } => "listener",
        Purpose::Listener { v6: true, alone: true } => "listener6",
        Purpose::Place => "place",
    }
}

fn parse(question: &[u8]) -> Option<(Purpose, SocketAddr)> {
    let (what, at) = str::from_utf8(question).ok()?.split_once(' ')?;
    let purposes = [(false, false), (true, false), (true, true)];
    let purposes = purposes.map(|(v6, alone)| Purpose::Listener { v6, alone });
    let purpose = purposes.into_iter().chain([Purpose::Place]).find(|of| words(*of) == what)?;
    Some((purpose, at.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_heard_as_said() {
        for (purpose, at) in [
            (Purpose::Listener { v6: false, alone: false }, "192.0.2.1:80"),
            (Purpose::Listener { v6: true, alone: false }, "[::]:80"),
            (Purpose::Listener { v6: true, alone: true }, "[2001:db8::1]:80"),
            (Purpose::Place, "[fe80::1%7]:80"),
        ] {
            let at: SocketAddr = at.parse().unwrap();
            let said = format!("{} {at}", words(purpose));
            assert_eq!(parse(said.as_bytes()), Some((purpose, at)));
        }
        assert_eq!(parse(b"place nowhere"), None);
        assert_eq!(parse(b"place"), None);
    }
}
