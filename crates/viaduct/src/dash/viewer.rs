//! Stream of events to one browser: the layout, then after each sample the list of services and the
//! new data of one subject. The first event of the subject has its complete history. A viewer that
//! reads slowly gets fewer and longer events.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::timeout;

use super::server::Connection;
use super::{SharedBoard, layout, lock};

/// Time without a read after which a viewer's connection is closed.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Browser that receives samples.
pub(super) struct Viewer {
    board: SharedBoard,
    /// Number of the chosen subject; `None` until the viewer or the board has chosen one.
    subject: Option<u64>,
    /// Next tick to send.
    next: u64,
    connection: Arc<Connection>,
}

impl Viewer {
    /// Creates a viewer of the subject number `subject`, or of the first one.
    pub(super) fn new(
        board: SharedBoard,
        subject: Option<u64>,
        connection: Arc<Connection>,
    ) -> Viewer {
        Viewer { board, subject, next: 0, connection }
    }

    /// Starts to produce events, until the receiver is dropped. `permit` is held until then.
    pub(super) fn start(
        mut self,
        mut ticks: watch::Receiver<()>,
        permit: OwnedSemaphorePermit,
    ) -> mpsc::Receiver<Bytes> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            ticks.mark_unchanged();
            let mut event = layout::layout_event();
            event.push_str(&self.event());
            loop {
                match timeout(STALL_TIMEOUT, sender.send(Bytes::from(event))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => break,
                    Err(_) => {
                        self.connection.stall();
                        break;
                    }
                }
                tokio::select! {
                    changed = ticks.changed() => if changed.is_err() { break },
                    () = sender.closed() => break,
                }
                event = self.event();
            }
            drop(permit);
        });
        receiver
    }

    /// Events since the last call.
    fn event(&mut self) -> String {
        let board = lock(&self.board);
        let mut text = board.list().to_owned();
        // A chosen subject may be unknown, because its number may come from an earlier run of
        // the dashboard.
        let chosen = self.subject.filter(|&subject| board.knows(subject));
        if self.subject != chosen || chosen.is_none() {
            (self.subject, self.next) = (chosen.or_else(|| board.first()), 0);
        }
        if let Some(subject) = self.subject {
            text.push_str(&board.news(subject, self.next));
            self.next = board.now() + 1;
        }
        text
    }
}
