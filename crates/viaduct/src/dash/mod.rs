//! `viaduct dash`: one web page with live plots of all services of this machine.
//!
//! ```text
//!   status sockets ──twice a second─▶ collect ─▶ samples ─▶ Board: history, list of services
//!   (run-dir/*.sock)                                          │
//!   browser ◀── page, script, uPlot ──┐                       │
//!           ◀── server-sent events ───┴── server ◀── viewer ──┘
//! ```
//!
//! The dashboard only reads: services need no option for it, and are unaware of it. Viewers read
//! the dashboard's history, so their number does not matter to the services. Names and reasons come
//! from configs and from other hosts; the page shows them as text. A *subject* is a thing with
//! plots of its own, such as a peer or a tunnel.

mod access;
mod args;
mod assets;
mod board;
mod collect;
mod http;
mod layout;
mod samples;
mod server;
mod tls;
mod viewer;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::info;

use crate::notify::{Phase, notify};
use crate::run_dir::{RunDir, listed};
use crate::signals::{SignalStreams, Signals};
use crate::watchdog::Watchdog;
pub use args::DashArgs;
use board::Board;
use server::Server;

/// Interval between two samples. A gateway counts a loss a little more than a second after it
/// occurred; with this interval the page shows it within two seconds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Board that the sampler and the viewers share. All of them run in one thread.
type SharedBoard = Arc<Mutex<Board>>;

/// Runs `viaduct dash` until a signal ends it.
pub fn run(args: &DashArgs) -> Result<()> {
    let access = args.access()?;
    let tls = args.tls()?;
    let (runtime, signals) = Signals::register()?.into_parts();
    let done = runtime.block_on(async {
        let listen = args.listen;
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("--listen: cannot use {listen}"))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        info!("{scheme}://{listen}/ shows the services in {}", listed(&args.run_dir.searched()));
        let board = SharedBoard::default();
        let (ticks, ticked) = watch::channel(());
        let server = Server::new(board.clone(), ticked, access, tls);
        serve(&args.run_dir, &board, &ticks, (&listener, &server), signals).await;
        Ok(())
    });
    notify(Phase::Stopping);
    done
}

/// Takes samples and serves viewers until a signal arrives.
async fn serve(
    run_dir: &RunDir,
    board: &SharedBoard,
    ticks: &watch::Sender<()>,
    (listener, server): (&TcpListener, &Server),
    signals: SignalStreams,
) {
    let directories = run_dir.searched();
    let SignalStreams { mut hangup, mut terminate, mut interrupt, .. } = signals;
    tokio::select! {
        () = take_samples(&directories, board, ticks) => {}
        () = server.serve(listener) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = answer_watchdog() => {}
        // SIGHUP has no effect: the files of TLS and the token are read only at the start.
        () = async { while hangup.recv().await.is_some() {} } => {}
    }
}

/// Answers the service manager's watchdog. All tasks share this thread, so an answer shows that no
/// task blocks it.
async fn answer_watchdog() {
    let mut watchdog = Watchdog::new();
    loop {
        watchdog.due().await;
        watchdog.answer(Duration::ZERO);
    }
}

/// Takes a sample each [`SAMPLE_INTERVAL`].
async fn take_samples(directories: &[PathBuf], board: &SharedBoard, ticks: &watch::Sender<()>) {
    let mut due = tokio::time::interval(SAMPLE_INTERVAL);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_first = true;
    loop {
        due.tick().await;
        let answers = collect::answers(directories).await;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        lock(board).sample(time.as_secs_f64(), answers);
        ticks.send_replace(());
        if std::mem::take(&mut is_first) {
            notify(Phase::Ready);
        }
    }
}

/// Locks the board. The board stays usable if another holder has panicked: the next sample
/// updates it.
fn lock(board: &SharedBoard) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}
