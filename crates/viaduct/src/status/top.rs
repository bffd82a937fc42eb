//! `viaduct top`: reads all services each second, and draws the screen when something has changed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use std::{io, thread};

use anyhow::{Context as _, Result};

use super::client::{self, ServiceStatus, Unread};
use super::colours::Colours;
use super::overview::Overview;
use super::screen::Screen;
use super::terminal::{Terminal, size};

const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks for answers and for a new size of the terminal.
const TICK: Duration = Duration::from_millis(100);
/// Maximum number of services that are read at the same time.
const MAX_READS: usize = 64;

/// Services that are watched.
#[derive(Debug)]
pub enum Watched {
    /// A single service: its name and the path of its socket.
    One(String, PathBuf),
    /// All services in these directories.
    All(Vec<PathBuf>),
}

/// Name of a service, the time of its answer, and the answer.
type Answer = (String, Duration, Result<ServiceStatus, Unread>);

/// Reads of services in progress. A service that hangs does not delay the others.
struct Reads {
    watched: Watched,
    began: Instant,
    under_way: BTreeSet<String>,
    /// Name of the service whose read began last. The next reads begin with the services after it,
    /// so that each service has its turn.
    last: String,
    answered: Sender<Answer>,
    answers: Receiver<Answer>,
}

/// Draws the screen until a key quits, or a signal ends the program.
///
/// # Errors
/// The terminal cannot be used, or the directory cannot be read at the start.
pub fn run(watched: Watched, colours: Colours) -> Result<()> {
    let (mut overview, began) = (Overview::default(), Instant::now());
    let mut reads = Reads::new(watched, began);
    let sockets = reads.sockets().context("the run directory cannot be read")?;
    let mut screen = match reads.watched {
        Watched::One(..) => Screen::single(&sockets[0].0),
        Watched::All(_) => Screen::new(&names(&sockets)),
    };
    let terminal = Terminal::take()?;
    loop {
        let until = Instant::now() + REFRESH_INTERVAL;
        reads.begin(&mut overview);
        let mut drawn = None;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            let has_answers = reads.finish(&mut overview);
            if has_answers || drawn != Some(size()) {
                drawn = Some(size());
                terminal.draw(&screen.show(&overview, began.elapsed(), size(), colours))?;
            }
            let keys = terminal.keys(left.min(TICK));
            if terminal.is_ended() {
                return Ok(());
            }
            for key in keys? {
                drawn = None;
                if screen.press(key, &overview, size().rows) {
                    return Ok(());
                }
            }
        }
    }
}

impl Reads {
    fn new(watched: Watched, began: Instant) -> Reads {
        let (answered, answers) = channel();
        Reads { watched, began, under_way: BTreeSet::new(), last: String::new(), answered, answers }
    }

    /// Names and paths of the sockets.
    fn sockets(&self) -> io::Result<Vec<(String, PathBuf)>> {
        match &self.watched {
            Watched::One(name, path) => Ok(vec![(name.clone(), path.clone())]),
            Watched::All(dirs) => client::sockets(dirs),
        }
    }

    /// Begins to read each service that is not being read yet.
    fn begin(&mut self, overview: &mut Overview) {
        let mut sockets = match self.sockets() {
            Ok(sockets) => sockets,
            Err(error) => {
                overview.trouble = Some(format!("the run directory cannot be read: {error}"));
                return;
            }
        };
        overview.trouble = None;
        overview.handle_names(self.began.elapsed(), &names(&sockets));
        let next = sockets.partition_point(|(name, _)| *name <= self.last);
        sockets.rotate_left(next);
        for (name, path) in sockets {
            if self.under_way.len() < MAX_READS && self.under_way.insert(name.clone()) {
                self.last.clone_from(&name);
                let (answered, began) = (self.answered.clone(), self.began);
                thread::spawn(move || {
                    let answer = client::read(&path);
                    // The receiver is gone only if the program ends.
                    let _ = answered.send((name, began.elapsed(), answer));
                });
            }
        }
    }

    /// Passes on the answers that have arrived. Returns whether there were any.
    fn finish(&mut self, overview: &mut Overview) -> bool {
        let mut has_answers = false;
        for (name, at, answer) in self.answers.try_iter() {
            self.under_way.remove(&name);
            overview.handle_answer(at, &name, answer);
            has_answers = true;
        }
        has_answers
    }
}

fn names(sockets: &[(String, PathBuf)]) -> Vec<String> {
    sockets.iter().map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::overview::Service;
    use std::fs;
    use std::os::unix::net::UnixListener;

    #[test]
    fn each_of_many_services_has_its_turn() {
        let dir = std::env::temp_dir().join(format!("viaduct-top-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for n in 0..MAX_READS + 6 {
            // The listener is closed: a read fails immediately.
            drop(UnixListener::bind(client::socket(&dir, &format!("proxy-{n}"))).unwrap());
        }
        let mut reads = Reads::new(Watched::All(vec![dir.clone()]), Instant::now());
        let mut overview = Overview::default();
        for _ in 0..2 {
            reads.begin(&mut overview);
            while !reads.under_way.is_empty() {
                reads.finish(&mut overview);
                thread::sleep(Duration::from_millis(1));
            }
        }
        let unread = |service: &Service| service.unread.is_some();
        assert!(overview.services().all(|(_, service)| unread(service)));
        fs::remove_dir_all(&dir).unwrap();
    }
}
