//! `viaduct serve DIR`: static files.
//!
//! ```text
//!   connection ──▶ tcp: reads a head ──▶ proto::web::Request ──▶ files: what stands there
//!        ▲                                                            │
//!        └───────── head, and the file's bytes ◀── proto::web::plan ◀─┘
//! ```
//!
//! What is answered is decided by [`viaduct_proto::web`], the same for every way by which requests come.

mod files;
mod tcp;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::net::TcpListener;
use tokio::task::LocalSet;
use tracing::info;

use files::Root;

/// What the command line says.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// The directory whose files are served; nothing outside it, also by symbolic links, and no name
    /// that begins with a dot but .well-known
    dir: PathBuf,
    /// Addresses to listen at
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8080")]
    listen: Vec<SocketAddr>,
    /// Connections that are served at a time; more wait
    #[arg(long, value_name = "N", default_value_t = 4096,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    max_connections: u32,
}

/// Serves until it is told to stop.
pub fn run(args: &ServeArgs) -> Result<()> {
    let root = Root::open(&args.dir)
        .with_context(|| format!("cannot serve {}: a directory is expected", args.dir.display()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, serve(args, Rc::new(root)))
}

async fn serve(args: &ServeArgs, root: Rc<Root>) -> Result<()> {
    let places = tcp::places(args.max_connections);
    for &address in &args.listen {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("cannot listen at {address}"))?;
        info!(address = %listener.local_addr()?, dir = %args.dir.display(), "serving");
        tokio::task::spawn_local(tcp::accept(listener, root.clone(), places.clone()));
    }
    let mut end = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        _ = end.recv() => {}
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    Ok(())
}
