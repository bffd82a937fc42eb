//! TCP connection: reads request heads, and writes responses.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use viaduct_proto::web::{Body, MAX_HEAD, Plan, Request, plan};

use super::disk::Answer;
use super::outgoing::Outgoing;
use super::tcp::ServerState;
use crate::access_log::Entry;

/// Timeout of a request head, and of the pause between two requests.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which the client's bytes are read after the last response. If the socket were closed
/// with unread bytes, the kernel would reset the connection, and the response might be lost.
const LINGER: Duration = Duration::from_secs(2);
/// Interval between checks of a lingering connection.
const LINGER_POLL: Duration = Duration::from_millis(200);

/// Result of parsing a client's bytes.
enum Parsed {
    /// Request, and the length of its head in bytes.
    Request(Request, usize),
    /// Response to bytes that are not a valid request.
    Refused(Plan),
}

/// Answers requests one after the other, until the client or a response ends the connection.
/// Errors: the connection failed, or its client was too slow.
pub async fn serve_connection(
    stream: &TcpStream,
    client: SocketAddr,
    state: &ServerState,
) -> io::Result<()> {
    let mut out = Outgoing::new(stream, state.limits)?;
    answer_all(stream, &mut out, client, state).await?;
    rustix::net::shutdown(stream, rustix::net::Shutdown::Write)?;
    linger(stream, &mut out).await
}

async fn answer_all(
    stream: &TcpStream,
    out: &mut Outgoing<'_>,
    client: SocketAddr,
    state: &ServerState,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    while let Some(parsed) = next_request(stream, &mut bytes, out).await? {
        let start = (SystemTime::now(), Instant::now());
        let (plan, answer, taken) = match parsed {
            Parsed::Request(request, taken) => {
                let answer = state.disk.find(&request).await;
                (plan(&request, &answer.found), Some(answer), taken)
            }
            Parsed::Refused(plan) => (plan, None, bytes.len()),
        };
        state.counts.add(|count| count.requests += 1);
        let before = out.written();
        out.begin();
        let done = send(out, &plan, answer.as_ref(), state).await;
        if state.log.is_on() {
            let reason = done.as_ref().err().map(ToString::to_string);
            let sent = out.written() - before;
            state.log.write(entry(client, &bytes[..taken], start, plan.status, sent, reason));
        }
        done?;
        if !plan.keep_alive {
            break;
        }
        bytes.drain(..taken);
        if bytes.is_empty() {
            // An idle connection needs no buffer.
            bytes = Vec::new();
        }
    }
    Ok(())
}

fn entry(
    client: SocketAddr,
    request: &[u8],
    start: (SystemTime, Instant),
    status: u16,
    sent: u64,
    reason: Option<String>,
) -> Entry {
    let line = request.split(|&byte| byte == b'\r').find(|line| !line.trim_ascii().is_empty());
    let line = line.map_or(&b"-"[..], <[u8]>::trim_ascii);
    Entry {
        start: start.0,
        duration: Some(start.1.elapsed()),
        client,
        user: None,
        protocol: "http",
        request: String::from_utf8_lossy(line).into_owned(),
        status,
        sent,
        received: request.len() as u64,
        reason,
    }
}

/// Reads the next request; `None` at the end of the stream.
async fn next_request(
    stream: &TcpStream,
    bytes: &mut Vec<u8>,
    out: &mut Outgoing<'_>,
) -> io::Result<Option<Parsed>> {
    let mut until = Instant::now() + IDLE_TIMEOUT;
    loop {
        match Request::parse(bytes) {
            Ok(Some((request, taken))) => return Ok(Some(Parsed::Request(request, taken))),
            Err(why) => return Ok(Some(Parsed::Refused(Plan::refuse(why)))),
            Ok(None) => {}
        }
        let begins = bytes.is_empty();
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match timeout(left.min(out.check_interval()), stream.readable()).await {
            Ok(ready) => ready?,
            Err(_) => {
                // A client that is still receiving the last response is not idle.
                if begins && out.unacknowledged() > 0 {
                    out.check_progress()?;
                    until = Instant::now() + IDLE_TIMEOUT;
                }
                continue;
            }
        }
        bytes.reserve(MAX_HEAD);
        match stream.try_read_buf(bytes) {
            Ok(0) => return Ok(None),
            Ok(_) if begins => until = Instant::now() + IDLE_TIMEOUT,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn send(
    out: &mut Outgoing<'_>,
    plan: &Plan,
    answer: Option<&Answer>,
    state: &ServerState,
) -> io::Result<()> {
    let file: Option<&Arc<File>> = answer.and_then(|answer| answer.file.as_ref());
    let body: &[u8] = match (&plan.body, file) {
        (Body::Bytes(bytes), _) => bytes,
        (Body::Page(listing), _) => listing.page(),
        (Body::File(range), Some(file)) => {
            out.write(&plan.head).await?;
            return out.write_file(&state.disk, file, range.clone()).await;
        }
        (Body::File(_), None) => return Err(io::ErrorKind::NotFound.into()),
    };
    out.write_both(&plan.head, body).await
}

/// Waits until the client has acknowledged the complete last response. If the socket were closed
/// earlier, the kernel would keep the unsent data for a time that this process cannot limit.
async fn linger(stream: &TcpStream, out: &mut Outgoing<'_>) -> io::Result<()> {
    out.begin();
    let until = Instant::now() + LINGER;
    let mut rest = [0; 1024];
    let mut reads = true;
    loop {
        let now = Instant::now();
        let left = until.saturating_duration_since(now);
        if out.unacknowledged() == 0 && (left.is_zero() || !reads) {
            return Ok(());
        }
        out.check_progress()?;
        if let Some(error) = stream.take_error()? {
            return Err(error);
        }
        if !reads || left.is_zero() {
            tokio::time::sleep(LINGER_POLL).await;
            continue;
        }
        let Ok(ready) = timeout(left.min(LINGER_POLL), stream.readable()).await else { continue };
        ready?;
        match stream.try_read(&mut rest) {
            Ok(0) => reads = false,
            Ok(_) => tokio::task::yield_now().await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}
