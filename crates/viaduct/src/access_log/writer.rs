//! Thread that formats entries and writes them.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use tracing::{info, warn};

use super::entry::{Entry, Format};
use super::{AccessLogStats, Target};

/// Maximum number of entries in the queue; about 10 MB, because [`Entry::truncate`] limits the size
/// of each.
const MAX_QUEUED: usize = 4096;
/// Bytes of lines after which a batch is written, even if more entries are waiting.
const MAX_BATCH: usize = 64 << 10;
/// Maximum time for which the process waits at shutdown until the queue is written.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between attempts to queue the flush request while the queue is full.
const FLUSH_RETRY: Duration = Duration::from_millis(5);
/// Minimum interval between warnings about lost lines.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Handle of an access log; clones share the log. A handle without a log ignores entries.
#[derive(Clone, Debug, Default)]
pub struct AccessLog(Option<Writer>);

/// Queue of an access log, and the state that its thread shares.
#[derive(Clone, Debug)]
struct Writer {
    queue: SyncSender<Message>,
    state: Arc<State>,
}

#[derive(Debug)]
enum Message {
    Entry(Box<Entry>),
    /// Wakes the thread, which then checks whether the file is to be reopened.
    Wake,
    /// Request to flush; dropped when all earlier entries are written.
    Flush(SyncSender<()>),
}

#[derive(Debug, Default)]
struct State {
    reopen: AtomicBool,
    written: AtomicU64,
    lost: AtomicU64,
}

impl AccessLog {
    /// Opens the destination and starts the thread.
    pub(super) fn start(target: Target, format: Format) -> Result<AccessLog> {
        let sink = Sink::open(&target)?;
        let state = Arc::<State>::default();
        let (queue, entries) = sync_channel(MAX_QUEUED);
        let thread = Thread::new(target, format, sink, state.clone());
        let run = move || thread.run(&entries);
        std::thread::Builder::new().name("access-log".to_owned()).spawn(run)?;
        Ok(AccessLog(Some(Writer { queue, state })))
    }

    /// Returns whether entries are written. If not, callers may skip creating them.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Queues an entry; never blocks.
    pub fn write(&self, entry: Entry) {
        let Some(Writer { queue, state }) = &self.0 else { return };
        if queue.try_send(Message::Entry(Box::new(entry.truncate()))).is_err() {
            state.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Requests that the thread reopens the file by its name. If that fails, the log continues in
    /// the old file.
    pub fn reopen(&self) {
        let Some(Writer { queue, state }) = &self.0 else { return };
        state.reopen.store(true, Ordering::Release);
        // If the queue is full, the thread is awake and sees the flag.
        let _ = queue.try_send(Message::Wake);
    }

    /// Waits until the queue is written, for at most 2 s. Called when the process shuts down.
    pub fn flush(&self) {
        let Some(Writer { queue, .. }) = &self.0 else { return };
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        let (flushed, written) = sync_channel(0);
        let mut request = Message::Flush(flushed);
        let is_sent = loop {
            match queue.try_send(request) {
                Err(TrySendError::Full(again)) if Instant::now() < deadline => request = again,
                sent => break !matches!(sent, Err(TrySendError::Full(_))),
            }
            std::thread::sleep(FLUSH_RETRY);
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if !is_sent || written.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            warn!("access log: the last lines could not be written within {FLUSH_TIMEOUT:?}");
        }
    }

    /// Counters; `None` without a log.
    pub fn stats(&self) -> Option<AccessLogStats> {
        let State { written, lost, .. } = &*self.0.as_ref()?.state;
        let [written, lost] = [written, lost].map(|count| count.load(Ordering::Relaxed));
        Some(AccessLogStats { written, lost })
    }
}

struct Thread {
    target: Target,
    format: Format,
    sink: Sink,
    state: Arc<State>,
    /// Time of the last warning, and number of lines lost until then.
    warned: Option<(Instant, u64)>,
    /// Latest error of a write since the last warning.
    error: Option<io::Error>,
    /// True if the last write has ended inside a line.
    is_torn: bool,
}

impl Thread {
    fn new(target: Target, format: Format, sink: Sink, state: Arc<State>) -> Thread {
        Thread { target, format, sink, state, warned: None, error: None, is_torn: false }
    }

    fn run(mut self, entries: &Receiver<Message>) {
        while let Ok(first) = entries.recv() {
            let (mut batch, mut lines, mut flushes) = (String::new(), 0, Vec::new());
            let mut next = Some(first);
            while let Some(message) = next {
                match message {
                    Message::Entry(entry) => {
                        batch.push_str(&entry.line(self.format));
                        lines += 1;
                    }
                    Message::Wake => {}
                    Message::Flush(flushed) => flushes.push(flushed),
                }
                next = if batch.len() < MAX_BATCH { entries.try_recv().ok() } else { None };
            }
            // Lines that were queued before the reopen request may go to either file.
            if self.state.reopen.swap(false, Ordering::AcqRel) {
                self.reopen();
            }
            self.write_batch(&batch, lines);
            drop(flushes);
        }
    }

    fn write_batch(&mut self, batch: &str, lines: u64) {
        // If the last write ended inside a line, the batch begins on a new line: otherwise its
        // first line would be read as the rest of that line.
        let start = if self.is_torn && !batch.is_empty() { "\n" } else { "" };
        let (length, failed) = self.sink.write(&[start, batch].concat());
        let written =
            batch.as_bytes().get(..length.saturating_sub(start.len())).unwrap_or_default();
        let whole = written.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.is_torn = match written.last() {
            Some(last) => *last != b'\n',
            None => self.is_torn && length == 0,
        };
        self.state.written.fetch_add(whole, Ordering::Relaxed);
        self.state.lost.fetch_add(lines.saturating_sub(whole), Ordering::Relaxed);
        self.error = failed.or_else(|| self.error.take());
        match self.take_lost(Instant::now()) {
            Some((lines, Some(error))) => warn!(%error, lines, "access log: lines were lost"),
            Some((lines, None)) => {
                warn!(lines, "access log: lines were lost because the queue was full");
            }
            None => {}
        }
    }

    /// Returns the number of lines lost since the last warning, and the latest error of a write
    /// since then; `None` if no line was lost, or if the last warning is too recent.
    fn take_lost(&mut self, now: Instant) -> Option<(u64, Option<io::Error>)> {
        let lost = self.state.lost.load(Ordering::Relaxed);
        let (since, reported) =
            self.warned.map_or((None, 0), |(at, reported)| (Some(at), reported));
        if lost == reported || since.is_some_and(|at| now.duration_since(at) < WARN_INTERVAL) {
            return None;
        }
        self.warned = Some((now, lost));
        Some((lost - reported, self.error.take()))
    }

    fn reopen(&mut self) {
        match Sink::open(&self.target) {
            Ok(sink) => {
                self.sink = sink;
                info!("access log reopened");
            }
            Err(error) => warn!("access log: the old file stays in use: {error:#}"),
        }
    }
}

enum Sink {
    Stdout,
    Stderr,
    File(File),
}

impl Sink {
    fn open(target: &Target) -> Result<Sink> {
        Ok(match target {
            Target::Stdout => Sink::Stdout,
            Target::Stderr => Sink::Stderr,
            Target::File(path) => Sink::File(append(path).with_context(|| {
                format!("access log: cannot open {} for writing", path.display())
            })?),
        })
    }

    /// Writes as much as possible; returns the number of bytes, and the error that prevented the
    /// rest.
    fn write(&mut self, text: &str) -> (usize, Option<io::Error>) {
        match self {
            Sink::Stdout => write_out(&mut io::stdout().lock(), text.as_bytes()),
            Sink::Stderr => write_out(&mut io::stderr().lock(), text.as_bytes()),
            Sink::File(file) => write_out(file, text.as_bytes()),
        }
    }
}

fn write_out(sink: &mut impl Write, bytes: &[u8]) -> (usize, Option<io::Error>) {
    let mut length = 0;
    while length < bytes.len() {
        match sink.write(&bytes[length..]) {
            Ok(0) => return (length, Some(io::ErrorKind::WriteZero.into())),
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (length, Some(error)),
        }
    }
    match sink.flush() {
        Ok(()) => (length, None),
        Err(error) => (0, Some(error)),
    }
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    // Opening a pipe without a reader fails instead of blocking.
    let mut flags = OFlags::NONBLOCK;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let owner = fs::metadata(directory.unwrap_or(Path::new("."))).map(|of| of.uid());
    if owner.is_ok_and(|owner| ![0, geteuid().as_raw()].contains(&owner)) {
        // The owner of the directory could put a link to any file of this user there.
        flags |= OFlags::NOFOLLOW;
    }
    let flags = flags.bits().cast_signed();
    options.append(true).create(true).mode(0o640).custom_flags(flags).open(path)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn entry(n: u64) -> Entry {
        Entry {
            start: SystemTime::now(),
            duration: None,
            client: "192.0.2.1:1".parse().unwrap(),
            user: None,
            protocol: "http",
            request: format!("GET /{n} HTTP/1.1"),
            status: 200,
            sent: n,
            received: 0,
            reason: None,
        }
    }

    #[test]
    fn a_file_that_was_moved_away_is_opened_again_and_no_line_is_lost() {
        let at = std::env::temp_dir().join(format!("viaduct-access-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let (log, old) = (at.join("log"), at.join("log.1"));
        let writer = AccessLog::start(Target::File(log.clone()), Format::Common).unwrap();
        writer.write(entry(1));
        let written = |lines| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while writer.stats().unwrap().written < lines && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        written(1);
        fs::rename(&log, &old).unwrap();
        writer.write(entry(2));
        written(2);
        writer.reopen();
        let deadline = Instant::now() + Duration::from_secs(20);
        while !log.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        writer.write(entry(3));
        writer.flush();
        let text = |path: &Path| fs::read_to_string(path).unwrap();
        assert!(text(&old).contains("/1 ") && text(&old).contains("/2 "), "{}", text(&old));
        assert!(text(&log).contains("/3 ") && text(&log).lines().count() == 1, "{}", text(&log));
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn a_link_in_a_directory_of_another_user_is_not_followed() {
        let at = std::env::temp_dir().join(format!("viaduct-log-link-{}", std::process::id()));
        fs::create_dir_all(&at).unwrap();
        let (log, other) = (at.join("log"), at.join("other"));
        std::os::unix::fs::symlink(&other, &log).unwrap();
        assert!(append(&log).is_ok() && other.exists());
        if geteuid().is_root() {
            std::os::unix::fs::chown(&at, Some(65_534), None).unwrap();
            assert!(append(&log).is_err() && append(&other).is_ok());
        }
        fs::remove_dir_all(&at).unwrap();
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted_and_cause_no_delay() {
        let writer = AccessLog::start(Target::File("/dev/full".into()), Format::Json).unwrap();
        let entries = MAX_QUEUED as u64 * 3;
        (0..entries).for_each(|n| writer.write(entry(n)));
        let deadline = Instant::now() + Duration::from_secs(20);
        while writer.stats().unwrap().lost < entries && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(writer.stats(), Some(AccessLogStats { written: 0, lost: entries }));
    }

    #[test]
    fn a_line_that_was_torn_is_not_continued_by_the_next_one() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let (state, target) = (Arc::<State>::default(), Target::Stderr);
        let mut thread = Thread::new(target, Format::Json, Sink::File(file), state.clone());
        let line = format!("{{\"line\":\"{}\"}}\n", "x".repeat(1_000));
        // The pipe fills inside a line.
        thread.write_batch(&line.repeat(200), 200);
        let [written, lost] = [&state.written, &state.lost].map(|of| of.load(Ordering::Relaxed));
        assert!(written > 10 && written + lost == 200, "{written} {lost}");
        let mut text = vec![0; 1 << 20];
        let length = io::Read::read(&mut reader, &mut text).unwrap();
        text.truncate(length);
        thread.write_batch(&line, 1);
        drop(thread);
        io::Read::read_to_end(&mut reader, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        let whole = text.split_inclusive('\n').filter(|of| **of == line).count() as u64;
        assert_eq!(whole, written + 1);
        assert!(text.ends_with(&format!("\n{line}")));
    }

    #[test]
    fn a_write_error_is_reported_even_if_the_next_write_succeeds() {
        let full = Target::File("/dev/full".into());
        let sink = Sink::open(&full).unwrap();
        let state = Arc::<State>::default();
        let mut thread = Thread::new(full, Format::Json, sink, state.clone());
        thread.write_batch("a\n", 1);
        // Soon after the first warning, so not reported yet.
        thread.write_batch("b\n", 1);
        thread.sink = Sink::open(&Target::File("/dev/null".into())).unwrap();
        thread.write_batch("c\n", 1);
        let mut now = Instant::now() + WARN_INTERVAL;
        assert!(matches!(thread.take_lost(now), Some((1, Some(_)))));
        now += WARN_INTERVAL;
        assert!(thread.take_lost(now).is_none());
        // The queue was full.
        state.lost.fetch_add(2, Ordering::Relaxed);
        assert!(matches!(thread.take_lost(now), Some((2, None))));
    }
}
