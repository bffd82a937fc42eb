//! What the server's core takes for requests that were really sent: answered once more in this thread,
//! without a system call, and against the thread's own clock. So it needs no profiler, and nobody's leave.
//!
//! ```text
//!   kept requests ─▶ Endpoint ─▶ web::respond ─▶ messages     all of it
//!         └─ their codes and nonces, computed alone ─▶        of that, cryptography
//! ```

use std::fs::File;
use std::hint::black_box;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Result, ensure};
use rustix::time::{ClockId, clock_gettime};
use viaduct_proto::time::Instant;
use viaduct_proto::trickles::api::{Endpoint, Files};
use viaduct_proto::trickles::continuation::CONTINUATION;
use viaduct_proto::trickles::keys::{KeyRing, MAC};
use viaduct_proto::trickles::packet::Return;
use viaduct_proto::trickles::replay::Replay;
use viaduct_proto::trickles::server::{Server, Settings};
use viaduct_proto::trickles::wire::{Form, Kind, Request, Response};
use viaduct_proto::web::{self, Found, Site, respond};

use super::served::{PORT, SECRET};
use crate::experiments::statistics::median;

/// As `viaduct serve` has it.
const REPLAY: usize = 16 << 20;
const HORIZON: Duration = Duration::from_secs(30);
/// Codes that are timed at once.
const CODES: u32 = 100_000;
/// Bytes under the code that binds an address, and of a block of the cipher: two words of nonces.
const ADDRESS: usize = 18;
const BLOCK: usize = 16;

/// Seconds of a request, on average.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Core {
    /// From the message to the messages that answer it.
    pub(super) all: f64,
    /// Of these, computing and comparing codes, and nonces.
    pub(super) cryptography: f64,
}

/// Measures it without a cache, and with one for so many connections, by turns: medians of `rounds`. `file`
/// is what was served.
///
/// # Errors
/// The requests are not answered: they are older than the server's horizon, or of another secret.
pub(super) fn measure(
    requests: &[(SocketAddr, Vec<u8>)],
    file: &Path,
    cache: usize,
    rounds: usize,
) -> Result<[Core; 2]> {
    let mut work = Work::of_requests(requests);
    answer(requests, file, 0, |message| work.count(message))?;
    let mut all = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        for (of, cache) in all.iter_mut().zip([0, cache]) {
            of.push(answer(requests, file, cache, |message| {
                black_box(message.len());
            })?);
        }
    }
    let (each, times) = (|seconds: f64| seconds / requests.len() as f64, Times::measure());
    let core = |all: &[f64], cached| {
        let cryptography = each(work.seconds(&times, cached));
        Core { all: each(median(all)), cryptography }
    };
    Ok([core(&all[0], false), core(&all[1], true)])
}

/// Answers all of them, and hands each message to `sink`; seconds of this thread's time.
fn answer(
    requests: &[(SocketAddr, Vec<u8>)],
    file: &Path,
    cache: usize,
    mut sink: impl FnMut(&[u8]),
) -> Result<f64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now = Instant::from_nanos(u64::try_from(now.as_nanos())?);
    let replay = Replay::new(REPLAY, HORIZON, [1, 2, 3, 4], now);
    let ring = KeyRing::new(SECRET.0, &SECRET.1);
    let server = Server::new(Settings::default(), ring, replay).with_cache(cache);
    let (mut endpoint, mut shelf) = (Endpoint::new(server, 1), Shelf::of(file)?);
    let at = SocketAddr::from(([10, 2, 1, 2], PORT));
    let (mut refused, begin) = (0, thread_time());
    for (from, message) in requests {
        match endpoint.accept(now, Return::of_datagram(*from, at), message) {
            Ok(event) => {
                let reply = respond(endpoint.ring(), &event, &mut shelf);
                endpoint.send(event, &reply, &mut shelf, |_, message| sink(message));
            }
            Err(_) => refused += 1,
        }
    }
    let seconds = (thread_time() - begin).as_secs_f64();
    // Such as come twice, as they did then.
    ensure!(20 * refused < requests.len(), "{refused} of {} were refused", requests.len());
    Ok(seconds)
}

/// What is computed with keys.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    requests: u64,
    /// Codes of transport continuations, in what came and in what left.
    codes: u64,
    /// Codes of user continuations, and bytes under them.
    users: (u64, u64),
    /// Packets that bear a nonce.
    nonces: u64,
}

impl Work {
    fn of_requests(requests: &[(SocketAddr, Vec<u8>)]) -> Work {
        let mut work = Work { requests: requests.len() as u64, ..Work::default() };
        for (_, message) in requests {
            let Ok(request) = Request::parse(message) else { continue };
            work.codes += u64::from(!matches!(request.kind, Kind::Open { .. }));
            let mut last: &[u8] = &[];
            for (user, _) in request.groups {
                if user != last {
                    work.users = (work.users.0 + 1, work.users.1 + user.len() as u64);
                    last = user;
                }
            }
        }
        work
    }

    /// What a message that leaves took.
    fn count(&mut self, message: &[u8]) {
        let Ok(response) = Response::parse(message) else { return };
        match response.form {
            Form::Ticket(_) => self.codes += 1,
            Form::Fresh(_) | Form::Slim(_) => {
                self.codes += 1;
                self.nonces += 1;
            }
            Form::Half | Form::Again => self.nonces += 1,
            Form::Group(group) => {
                for (_, _, continuation) in group.packets() {
                    self.nonces += 1;
                    self.codes += u64::from(continuation.is_some());
                }
            }
        }
        if !response.payload.user.is_empty() {
            let bytes = response.payload.user.len() as u64;
            self.users = (self.users.0 + 1, self.users.1 + bytes);
        }
    }

    /// What all of it takes. With each request goes the code of an address, and two words of nonces that
    /// its proof is compared with; a cache has one of these, and the address.
    fn seconds(&self, times: &Times, cached: bool) -> f64 {
        let users = self.users.0 as f64 * times.code(0) + self.users.1 as f64 * times.byte;
        let (addresses, words) = if cached { (0.0, 1.0) } else { (1.0, 2.0) };
        let blocks = self.nonces as f64 / 2.0 + self.requests as f64 * words;
        self.codes as f64 * times.code(CONTINUATION - MAC)
            + users
            + self.requests as f64 * addresses * times.code(ADDRESS)
            + blocks * times.byte * BLOCK as f64
    }
}

/// Seconds that a code takes by itself, and each byte under it.
#[derive(Clone, Copy, Debug)]
struct Times {
    itself: f64,
    byte: f64,
}

impl Times {
    /// Of codes compared, as the server does with what comes.
    fn measure() -> Times {
        let [short, long] = [BLOCK, 64 * BLOCK].map(time_of_code);
        let byte = (long - short) / (63 * BLOCK) as f64;
        Times { itself: short - byte * BLOCK as f64, byte }
    }

    fn code(&self, bytes: usize) -> f64 {
        self.itself + self.byte * bytes as f64
    }
}

fn time_of_code(bytes: usize) -> f64 {
    let ring = KeyRing::new(SECRET.0, &SECRET.1);
    let mut sealed = Vec::new();
    ring.seal_user(&vec![7; bytes], &mut sealed);
    let rounds = (0..5).map(|_| {
        let begin = thread_time();
        for _ in 0..CODES {
            black_box(ring.open_user(black_box(&sealed)));
        }
        (thread_time() - begin).as_secs_f64() / f64::from(CODES)
    });
    median(&rounds.collect::<Vec<_>>())
}

/// The one file, as the server sees it.
struct Shelf {
    found: Found,
}

impl Shelf {
    fn of(path: &Path) -> Result<Shelf> {
        let known = File::open(path)?.metadata()?;
        let found = Found::File {
            size: known.size(),
            modified: u64::try_from(known.mtime())?,
            nanos: u32::try_from(known.mtime_nsec())?,
        };
        Ok(Shelf { found })
    }
}

impl Site for Shelf {
    fn find(&mut self, _request: &web::Request) -> (Found, u64) {
        (self.found.clone(), 0)
    }
}

impl Files for Shelf {
    /// Not read: that is no work of the core's.
    fn read(&mut self, _file: u64, _offset: u64, _out: &mut [u8]) -> bool {
        true
    }
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
