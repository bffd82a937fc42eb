//! Requests that come by TCP.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::debug;
use viaduct_proto::web::{Body, Found, MAX_HEAD, Plan, Request, plan};

use super::files::Root;
use super::status::TcpStatus;
use crate::access_log::{AccessLog, Entry};

/// How long a client may take for a head, or be silent between two.
const IDLE: Duration = Duration::from_secs(30);
/// How long it may take nothing of what is sent.
const STALLED: Duration = Duration::from_secs(60);
/// How long what it still sends is waited for, when nothing more is said to it.
const LINGERS: Duration = Duration::from_secs(2);
/// Bytes of a file that are read at a time.
const CHUNK: u64 = 128 << 10;

/// What is counted of them.
#[derive(Debug, Default)]
pub struct Counts(Cell<TcpStatus>);

impl Counts {
    /// A copy.
    pub fn get(&self) -> TcpStatus {
        self.0.get()
    }

    fn add(&self, change: impl FnOnce(&mut TcpStatus)) {
        let mut counts = self.0.get();
        change(&mut counts);
        self.0.set(counts);
    }
}

/// So many connections at a time.
pub fn places(connections: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(connections as usize))
}

/// Takes connections, as long as there are places.
pub async fn accept(
    listener: TcpListener,
    root: Rc<Root>,
    places: Arc<Semaphore>,
    counts: Rc<Counts>,
    log: AccessLog,
) {
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (stream, client) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // No descriptor is left, say: those that end give some back.
                debug!(%error, "cannot accept");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (root, counts) = (root.clone(), counts.clone());
        let log = Log { log: log.clone(), client };
        counts
            .add(|count| (count.connections, count.open) = (count.connections + 1, count.open + 1));
        tokio::task::spawn_local(async move {
            if let Err(error) = converse(stream, &root, &counts, &log).await {
                debug!(%error, "a connection ended");
            }
            counts.add(|count| count.open -= 1);
            drop(place);
        });
    }
}

/// The access log of a connection.
struct Log {
    log: AccessLog,
    client: SocketAddr,
}

impl Log {
    fn write(
        &self,
        request: &[u8],
        begun: Begun,
        plan: &Plan,
        sent: u64,
        failed: Option<&io::Error>,
    ) {
        if !self.log.is_on() {
            return;
        }
        let line = request.split(|&byte| byte == b'\r').find(|line| !line.trim_ascii().is_empty());
        let line = line.unwrap_or(b"-").trim_ascii();
        self.log.write(Entry {
            start: begun.0,
            duration: Some(begun.1.elapsed()),
            client: self.client,
            user: None,
            protocol: "http",
            request: String::from_utf8_lossy(line).into_owned(),
            status: plan.status,
            sent,
            received: request.len() as u64,
            reason: failed.map(ToString::to_string),
        });
    }
}

/// Beginning of a request, by both clocks.
type Begun = (SystemTime, Instant);

/// Answers one request after the other.
async fn converse(
    mut stream: TcpStream,
    root: &Root,
    counts: &Counts,
    log: &Log,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut bytes = Vec::new();
    while let Some((plan, file, taken)) = next(&mut stream, &mut bytes, root).await? {
        counts.add(|count| count.requests += 1);
        let (begun, mut sent) = ((SystemTime::now(), Instant::now()), 0);
        let done = send(&mut stream, &plan, file.as_ref(), &mut sent).await;
        let request = if taken > 0 { &bytes[..taken] } else { &bytes[..] };
        log.write(request, begun, &plan, sent, done.as_ref().err());
        done?;
        if !plan.keep_alive {
            break;
        }
        bytes.drain(..taken);
    }
    stream.shutdown().await?;
    // What is not read has the kernel reset the connection, and the last answer may be lost with it.
    let mut rest = vec![0; MAX_HEAD];
    let drain = async { while stream.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    // It has had its time.
    let _ = timeout(LINGERS, drain).await;
    Ok(())
}

/// The answer to the next request, and how many bytes the request has; `None` at the end.
async fn next(
    stream: &mut TcpStream,
    bytes: &mut Vec<u8>,
    root: &Root,
) -> io::Result<Option<(Plan, Option<File>, usize)>> {
    let mut until = Instant::now() + IDLE;
    loop {
        match Request::parse(bytes) {
            Ok(Some((request, taken))) => {
                let (found, file) = root.find(&request).unwrap_or((Found::Unavailable, None));
                return Ok(Some((plan(&request, &found), file, taken)));
            }
            Err(why) => return Ok(Some((Plan::refuse(why), None, 0))),
            Ok(None) => {}
        }
        bytes.reserve(MAX_HEAD);
        let begins = bytes.is_empty();
        if timeout_at(until, stream.read_buf(bytes)).await?? == 0 {
            return Ok(None);
        }
        if begins {
            until = Instant::now() + IDLE;
        }
    }
}

/// Sends a response; `sent` counts its bytes, also where it fails.
async fn send(
    stream: &mut TcpStream,
    plan: &Plan,
    file: Option<&File>,
    sent: &mut u64,
) -> io::Result<()> {
    match (&plan.body, file) {
        (Body::Bytes(bytes), _) => send_bytes(stream, &plan.head, bytes, sent).await,
        (Body::Page(listing), _) => send_bytes(stream, &plan.head, listing.page(), sent).await,
        (Body::File(range), Some(file)) => {
            put(stream, &plan.head, sent).await?;
            send_file(stream, file, range.clone(), sent).await
        }
        (Body::File(_), None) => Err(io::ErrorKind::NotFound.into()),
    }
}

async fn send_bytes(
    stream: &mut TcpStream,
    head: &[u8],
    body: &[u8],
    sent: &mut u64,
) -> io::Result<()> {
    if body.len() as u64 <= CHUNK {
        return put(stream, &[head, body].concat(), sent).await;
    }
    put(stream, head, sent).await?;
    put(stream, body, sent).await
}

async fn send_file(
    stream: &mut TcpStream,
    file: &File,
    range: Range<u64>,
    sent: &mut u64,
) -> io::Result<()> {
    let mut at = range.start;
    let mut chunk = vec![0; CHUNK.min(range.end - range.start) as usize];
    while at < range.end {
        let wanted = (range.end - at).min(CHUNK) as usize;
        // A file that got shorter: the length was promised, so the connection ends.
        file.read_exact_at(&mut chunk[..wanted], at)?;
        put(stream, &chunk[..wanted], sent).await?;
        at += wanted as u64;
    }
    Ok(())
}

async fn put(stream: &mut TcpStream, mut bytes: &[u8], sent: &mut u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let taken = timeout(STALLED, stream.write(bytes)).await??;
        *sent += taken as u64;
        bytes = &bytes[taken..];
    }
    Ok(())
}
