//! `msk_*` functions of clients, and of both ends.
#![allow(unsafe_code)] // exported names, pointers of C

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicU32, Ordering};

use viaduct_proto::trickles::packet::{Format, FormatChoice};
use viaduct_proto::trickles::stream::{Config, Failure, State, Stream};
use viaduct_trickles::{ClientSettings, Connector, ConnectorEvent, Secrets, revert_stale_changes};

use crate::convert::{addresses, bytes, code, count, port_code, text, values};
use crate::server::{Options, ResolvedOptions};
use crate::table::{self, Client, End};

/// Maximum number of packet batches that one `msk_turn` of a client processes.
const BATCHES: usize = 16;

/// `msk_connect`
///
/// # Safety
/// The arguments are valid as the header requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_connect(to: *const c_char, options: Option<&Options>) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let (to, resolved) = unsafe { (text(to), ResolvedOptions::new(options)) };
    let to = to.map(addresses).and_then(Result::ok).and_then(|all| all.first().copied());
    let Some(to) = to else { return -libc::EINVAL };
    let formats = match resolved.ways {
        1 => FormatChoice::Only(Format::Tcp),
        2 => FormatChoice::Only(Format::Udp),
        _ => FormatChoice::Any,
    };
    // Each connection has firewall rules of its own, under this name.
    static MADE: AtomicU32 = AtomicU32::new(0);
    let instance =
        format!("viaduct_c_{}_{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
    let (mtu, run_dir) = (resolved.mtu, resolved.run_dir);
    revert_stale_changes(&run_dir);
    let settings = ClientSettings { formats, mtu, untracked: true, instance, run_dir };
    let Ok([seed, ..]) = Secrets::seeds() else { return -libc::EIO };
    match Connector::open(&settings, seed) {
        Err(error) => port_code(&error),
        Ok(mut connector) => match connector.connect(to, Config::default()) {
            Err(error) => code(&error),
            Ok(flow) => {
                let (unread, error) = (BTreeMap::new(), None);
                table::insert(End::Client(Box::new(Client { connector, flow, unread, error })))
            }
        },
    }
}

/// `msk_turn`
#[unsafe(no_mangle)]
pub extern "C" fn msk_turn(fd: c_int) -> c_int {
    table::with(fd, |end| match end {
        End::Server(listener) => match listener.fetch() {
            Err(error) => code(&error),
            Ok(_) => {
                // If the key file is invalid, the current secrets stay in use.
                let _ = listener.reload_secrets();
                count(listener.endpoint().waiting())
            }
        },
        End::Client(client) => turn(client),
    })
}

fn turn(client: &mut Client) -> c_int {
    let mut packets = 0;
    for _ in 0..BATCHES {
        match client.connector.turn() {
            Err(error) => return code(&error),
            Ok(0) => break,
            Ok(more) => packets += more,
        }
    }
    while let Some((_, event)) = client.connector.poll_event() {
        match event {
            ConnectorEvent::Open
            | ConnectorEvent::Changed(_)
            | ConnectorEvent::FellBack { .. }
            | ConnectorEvent::Unresponsive => {}
            ConnectorEvent::PlainTcp => client.error = Some(-libc::EPROTONOSUPPORT),
            ConnectorEvent::Refused { .. } | ConnectorEvent::MtuTooSmall => {
                client.error = Some(-libc::ECONNREFUSED);
            }
        }
    }
    client.error.unwrap_or(count(packets))
}

/// `msk_timeout`
#[unsafe(no_mangle)]
pub extern "C" fn msk_timeout(fd: c_int) -> c_int {
    table::with(fd, |end| match end {
        End::Server(listener) if listener.has_queued() => 0,
        // `msk_turn` looks for a changed key file, so it must be called at least once a second.
        End::Server(_) => 1_000,
        End::Client(client) => client.connector.poll_timeout().map_or(-1, |wait| {
            c_int::try_from(wait.as_micros().div_ceil(1_000)).unwrap_or(c_int::MAX)
        }),
    })
}

/// `msk_flush`
#[unsafe(no_mangle)]
pub extern "C" fn msk_flush(fd: c_int) -> c_int {
    table::with(fd, |end| {
        match end {
            End::Server(listener) => listener.flush(),
            End::Client(client) => client.connector.flush(),
        }
        0
    })
}

/// `msk_close`
#[unsafe(no_mangle)]
pub extern "C" fn msk_close(fd: c_int) -> c_int {
    table::client(fd, |client| {
        client.connector.close(client.flow);
        0
    });
    table::remove(fd)
}

/// `msk_request`
///
/// # Safety
/// `length` bytes can be read at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_request(
    fd: c_int,
    data: *const u8,
    length: usize,
    reserve: u64,
) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let data = unsafe { bytes(data, length) };
    connection(fd, |stream| number(stream.request(data, reserve)))
}

/// `msk_begin`
#[unsafe(no_mangle)]
pub extern "C" fn msk_begin(fd: c_int, reserve: u64) -> c_int {
    connection(fd, |stream| number(stream.begin(reserve)))
}

/// `msk_write`
///
/// # Safety
/// `length` bytes can be read at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_write(fd: c_int, id: c_int, data: *const u8, length: usize) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let data = unsafe { bytes(data, length) };
    table::client(fd, |client| write(client, id as u32, data))
}

fn write(client: &mut Client, id: u32, data: &[u8]) -> c_int {
    let written = client.connector.write(client.flow, id, data);
    let Some(stream) = client.connector.stream_ref(client.flow) else { return -libc::ENOTCONN };
    match stream.state(id) {
        _ if !stream.is_there(id) => -libc::EINVAL,
        State::Failed(why) => failure(why),
        _ if written > 0 || data.is_empty() => count(written),
        _ if stream.is_writing(id) => -libc::EAGAIN,
        _ => -libc::EPIPE,
    }
}

/// `msk_shutdown`
#[unsafe(no_mangle)]
pub extern "C" fn msk_shutdown(fd: c_int, id: c_int) -> c_int {
    stream(fd, id, |stream, id| {
        stream.shutdown(id);
        0
    })
}

/// `msk_forget`
#[unsafe(no_mangle)]
pub extern "C" fn msk_forget(fd: c_int, id: c_int) -> c_int {
    table::client(fd, |client| {
        client.unread.remove(&(id as u32));
        0
    });
    stream(fd, id, |stream, id| {
        stream.forget(id);
        0
    })
}

/// `msk_read`
///
/// # Safety
/// `length` bytes can be written at `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn msk_read(fd: c_int, id: c_int, data: *mut u8, length: usize) -> c_int {
    // SAFETY: the caller upholds the safety section above.
    let room = unsafe { values(data, count(length)) };
    table::client(fd, |client| read(client, id as u32, room))
}

fn read(client: &mut Client, id: u32, room: &mut [u8]) -> c_int {
    let Client { connector, flow, unread, error } = client;
    let mut taken = 0;
    while taken < room.len() {
        let Some(mut next) = unread.remove(&id).or_else(|| connector.read(*flow, id)) else {
            break;
        };
        let part = next.split_to(next.len().min(room.len() - taken));
        room[taken..taken + part.len()].copy_from_slice(&part);
        taken += part.len();
        if !next.is_empty() {
            unread.insert(id, next);
        }
    }
    let Some(stream) = connector.stream_ref(*flow) else { return -libc::ENOTCONN };
    match stream.state(id) {
        _ if !stream.is_there(id) => -libc::EINVAL,
        _ if taken > 0 => count(taken),
        State::Finished => 0,
        State::Failed(why) => failure(why),
        State::Open => error.unwrap_or(-libc::EAGAIN),
    }
}

fn connection(fd: c_int, act: impl FnOnce(&mut Stream) -> c_int) -> c_int {
    table::client(fd, |client| client.connector.stream(client.flow).map_or(-libc::ENOTCONN, act))
}

/// Calls `act` with a stream; `-EINVAL` if it does not exist.
fn stream(fd: c_int, id: c_int, act: impl FnOnce(&mut Stream, u32) -> c_int) -> c_int {
    connection(fd, |stream| match u32::try_from(id) {
        Ok(id) if stream.is_there(id) => act(stream, id),
        _ => -libc::EINVAL,
    })
}

fn number(stream: Option<u32>) -> c_int {
    stream.and_then(|stream| c_int::try_from(stream).ok()).unwrap_or(-libc::ENOSPC)
}

fn failure(why: Failure) -> c_int {
    -match why {
        Failure::Reset(_) => libc::ECONNRESET,
        Failure::Stalled => libc::EPIPE,
        Failure::Missing => libc::EPROTO,
        Failure::TooLong(_) => libc::EMSGSIZE,
        Failure::TimedOut => libc::ETIMEDOUT,
    }
}
