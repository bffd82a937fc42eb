//! Cost of the server's core for recorded requests: they are answered again in this thread, without
//! system calls, and timed by the thread's own clock. No profiler is needed.
//!
//! ```text
//!   recorded requests ─▶ Endpoint ─▶ web::respond ─▶ messages     total
//!         └─ their MACs and nonces, computed separately ─▶        cryptographic part
//! ```

use std::hint::black_box;
use std::os::unix::fs::MetadataExt as _;
use std::time::SystemTime;

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
use crate::experiments::prelude::*;

/// Bytes of the replay filter, as in `viaduct serve`.
const REPLAY: usize = 16 << 20;
/// Horizon of the replay filter, as in `viaduct serve`.
const HORIZON: Duration = Duration::from_secs(30);
/// Message authentication codes computed per timing.
const CODES: u32 = 100_000;
/// Bytes that the authentication code of an address covers.
const ADDRESS: usize = 18;
/// Bytes of the text whose authentication code is the number of a series of nonces.
const SERIES: usize = 28;
/// Bytes of a cipher block: two words of nonces.
const BLOCK: usize = 16;

/// Average seconds per request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Core {
    /// From the request to the complete response messages.
    pub(super) all: f64,
    /// Part of `all` that is spent on computing and comparing codes, and on nonces.
    pub(super) cryptography: f64,
}

/// Returns the median of `rounds` measurements. `file` is the served file. Fails if the requests
/// are not answered, for example because they are older than the server's horizon or were sealed
/// with another secret.
pub(super) fn measure(
    requests: &[(SocketAddr, Vec<u8>)],
    file: &Path,
    rounds: usize,
) -> Result<Core> {
    let mut work = Work::of_requests(requests);
    answer(requests, file, |message| work.count(message))?;
    let all = (0..rounds).map(|_| {
        answer(requests, file, |message| {
            black_box(message.len());
        })
    });
    let all = all.collect::<Result<Vec<_>>>()?;
    let each = |seconds: f64| seconds / requests.len() as f64;
    let cryptography = each(work.seconds(&Times::measure()));
    Ok(Core { all: each(median(&all)), cryptography })
}

/// Answers all requests and passes each message to `sink`; returns this thread's CPU seconds.
fn answer(
    requests: &[(SocketAddr, Vec<u8>)],
    file: &Path,
    mut sink: impl FnMut(&[u8]),
) -> Result<f64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let now = Instant::from_nanos(u64::try_from(now.as_nanos())?);
    let replay = Replay::new(REPLAY, HORIZON, [1, 2, 3, 4], now);
    let ring = KeyRing::new(SECRET.0, &SECRET.1);
    let server = Server::new(Settings::default(), ring, replay);
    let (mut endpoint, mut files) = (Endpoint::new(server, 1), SingleFile::of(file)?);
    let at = SocketAddr::from(([10, 2, 1, 2], PORT));
    let (mut refused, begin) = (0, thread_time());
    for (from, message) in requests {
        match endpoint.accept(now, Return::of_datagram(*from, at), message) {
            Ok(event) => {
                let reply = respond(endpoint.ring(), &event, &mut files);
                endpoint.send(event, &reply, &mut files, |_, message| sink(message));
            }
            Err(_) => refused += 1,
        }
    }
    let seconds = (thread_time() - begin).as_secs_f64();
    // Requests recorded twice are refused as they were originally.
    ensure!(20 * refused < requests.len(), "{refused} of {} requests were refused", requests.len());
    Ok(seconds)
}

/// Counts of keyed computations.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    requests: u64,
    /// Codes of transport continuations, received and sent.
    codes: u64,
    /// Codes of user continuations, and the bytes they cover.
    users: (u64, u64),
    /// Packets that carry a nonce.
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

    /// Counts the computations for an outgoing message.
    fn count(&mut self, message: &[u8]) {
        let Ok(response) = Response::parse(message) else { return };
        match response.form {
            Form::AddressToken(_) => self.codes += 1,
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

    /// Returns the seconds of all computations. Each request costs the code of an address, that of
    /// a series of nonces, and two words of nonces for comparison with its proof.
    fn seconds(&self, times: &Times) -> f64 {
        let users = self.users.0 as f64 * times.code(0) + self.users.1 as f64 * times.byte;
        let blocks = self.nonces as f64 / 2.0 + self.requests as f64 * 2.0;
        self.codes as f64 * times.code(CONTINUATION - MAC)
            + users
            + self.requests as f64 * (times.code(ADDRESS) + times.code(SERIES))
            + blocks * times.byte * BLOCK as f64
    }
}

/// Times of a code; see [`Times::code`].
#[derive(Clone, Copy, Debug)]
struct Times {
    /// Seconds per code, without the bytes that it covers.
    itself: f64,
    /// Seconds per byte that a code covers.
    byte: f64,
}

impl Times {
    /// Times comparisons of codes, as the server does for received messages.
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

/// Site with a single file.
struct SingleFile {
    found: Found,
}

impl SingleFile {
    fn of(path: &Path) -> Result<SingleFile> {
        let known = File::open(path)?.metadata()?;
        let found = Found::File {
            size: known.size(),
            modified: u64::try_from(known.mtime())?,
            nanos: u32::try_from(known.mtime_nsec())?,
        };
        Ok(SingleFile { found })
    }
}

impl Site for SingleFile {
    fn find(&mut self, _request: &web::Request) -> (Found, u64) {
        (self.found.clone(), 0)
    }
}

impl Files for SingleFile {
    /// Leaves `out` unchanged: reading files is not part of the core's work.
    fn read(&mut self, _file: u64, _offset: u64, _out: &mut [u8]) -> bool {
        true
    }
}

/// Returns the CPU time of this thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.cast_unsigned(), time.tv_nsec as u32)
}
