//! The control side of a gateway: signals and the status socket. It carries no packets and may be
//! slow.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};

use anyhow::{Context, Result, bail};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tracing::{error, info};
use viaduct_sys::poll::Waker;

use super::config::Config;
use super::site::Site;
use super::snapshot::{Published, Status};
use super::system::System;
use super::worker::Command;

/// Everything but packets.
pub struct Control {
    path: PathBuf,
    site: Site,
    worker: mpsc::Sender<Command>,
    waker: Arc<Waker>,
    published: Arc<Published>,
}

impl Control {
    /// Of the gateway whose config is at `path`.
    pub fn new(
        path: PathBuf,
        site: Site,
        worker: mpsc::Sender<Command>,
        waker: Arc<Waker>,
        published: Arc<Published>,
    ) -> Self {
        Control { path, site, worker, waker, published }
    }

    /// Runs until SIGTERM or SIGINT; SIGHUP reloads the config.
    pub fn run(mut self, system: &mut System) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = runtime.block_on(self.serve(system));
        self.tell(Command::Stop);
        let _ = fs::remove_file(self.site.config.socket());
        done
    }

    async fn serve(&mut self, system: &mut System) -> Result<()> {
        let listener = status_socket(&self.site.config)?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => match self.reload(system).await {
                    Ok(()) => info!("reloaded"),
                    Err(e) => error!("not reloaded, nothing has changed: {e:#}"),
                },
                Ok((mut client, _)) = listener.accept() => {
                    let status = serde_json::to_vec(&self.status())?;
                    tokio::spawn(async move { client.write_all(&status).await });
                }
            }
        }
        info!("stopping");
        Ok(())
    }

    fn status(&self) -> Status {
        Status::new(&self.site, self.published.get())
    }

    /// Reads the config again; all of it takes effect, or none.
    async fn reload(&mut self, system: &mut System) -> Result<()> {
        let config = Config::load(&self.path)?;
        let old = &self.site.config;
        let fixed = [
            ("name", config.name == old.name),
            ("key", config.secret == old.secret),
            ("prefixes", config.prefixes == old.prefixes),
            ("wan", config.wan == old.wan),
            ("listen", config.listen == old.listen),
            ("memory", config.memory == old.memory),
            ("run_dir", config.run_dir == old.run_dir),
        ];
        if let Some((key, _)) = fixed.iter().find(|(_, same)| !same) {
            bail!("[site] {key} has changed; that needs a restart");
        }
        let site = Site::new(config)?;
        let (outgoing, incoming) = site.filters()?;
        system.change(&site)?;
        let (reply, answer) = oneshot::channel();
        self.tell(Command::Reload { peers: site.peers(), outgoing, incoming, reply });
        let done = answer.await.context("the packet thread is gone")?;
        if let Err(what) = done {
            system.change(&self.site)?;
            bail!("{what}");
        }
        self.site = site;
        Ok(())
    }

    fn tell(&self, command: Command) {
        // A worker that is gone has said so already.
        let _ = self.worker.send(command);
        self.waker.wake();
    }
}

fn status_socket(config: &Config) -> Result<UnixListener> {
    let path = config.socket();
    let _ = fs::remove_file(&path);
    UnixListener::bind(&path).with_context(|| format!("status socket {}", path.display()))
}
