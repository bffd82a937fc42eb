//! Serves pictures with a separate mark for each client, and reads marks.
//!
//! ```text
//!   viaduct-watermark serve --mark MARK --key KEY --listen 0.0.0.0:8080 cat.jpg dog.jpg
//!   viaduct run +trickles -- curl -o mine.jpg http://192.0.2.1:8080/4711/cat.jpg
//!   viaduct-watermark read --mark MARK mine.jpg          4711
//! ```

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use viaduct_proto::trickles::api::Kind;
use viaduct_sys::poll::{Waker, wait};
use viaduct_trickles::{Listener, Secrets, ServerSettings};
use viaduct_watermark::gallery::Gallery;
use viaduct_watermark::jpeg::Jpeg;
use viaduct_watermark::mark::Key;
use viaduct_watermark::picture::Picture;

/// Bytes of the replay window.
const REPLAY: usize = 4 << 20;
/// Interval at which an idle event loop reloads changed secrets and checks the stop flag.
const IDLE_INTERVAL: Duration = Duration::from_millis(200);

/// Serves pictures with a mark for each client, and reads marks.
#[derive(Parser)]
enum Command {
    /// Serve JPEG files over Trickles, as /CLIENT/NAME, where CLIENT is a number
    Serve {
        /// Addresses to listen at
        #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:8080")]
        listen: Vec<SocketAddr>,
        /// File of the key for marks, which replicas share: 64 hexadecimal digits
        #[arg(long, value_name = "FILE")]
        mark: PathBuf,
        /// File of the secrets for continuations, which replicas share, as for `viaduct serve`
        #[arg(long, value_name = "FILE")]
        key: Option<PathBuf>,
        /// Packets of one connection are balanced among several servers
        #[arg(long, requires = "key")]
        balanced: bool,
        /// Directory of the journal of changed rules
        #[arg(long, value_name = "DIR", default_value = "/run/viaduct")]
        run_dir: PathBuf,
        /// Baseline JPEG files
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print the client for which a file was made
    Read {
        /// File of the key for marks
        #[arg(long, value_name = "FILE")]
        mark: PathBuf,
        /// A JPEG file
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Serve { listen, mark, key, balanced, run_dir, files } => {
            let settings = ServerSettings {
                listen,
                tcp: true,
                udp: true,
                mtu: 1500,
                untracked: true,
                gso: true,
                run_dir,
                share: None,
            };
            serve(&settings, &mark, key.as_deref(), balanced, &files)
        }
        Command::Read { mark, file } => read(&mark, &file),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("viaduct-watermark: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(
    settings: &ServerSettings,
    mark: &Path,
    key: Option<&Path>,
    balanced: bool,
    files: &[PathBuf],
) -> Result<()> {
    let mut gallery = Gallery::new(mark_key(mark)?);
    for file in files {
        let name = file.file_name().and_then(|name| name.to_str());
        let picture = Picture::open(&fs::read(file).with_context(|| file.display().to_string())?);
        let picture = picture.with_context(|| file.display().to_string())?;
        gallery.add(name.context("a file's name must be UTF-8")?, picture);
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut listener = Listener::open(settings, true, REPLAY, balanced, Secrets::new(key)?)?;
    eprintln!("ready");
    let waker = Waker::new()?;
    while !stop.load(Ordering::Relaxed) {
        let came = listener.turn(|endpoint, event, out| {
            if event.kind() == Kind::Close {
                endpoint.drop_event(event);
                return;
            }
            let reply = gallery.respond(endpoint.ring(), &event);
            endpoint.send(event, &reply, &mut (), out);
        });
        if came.unwrap_or(0) == 0 {
            wait(&[&listener], &waker, IDLE_INTERVAL);
            // On error, for example if the secrets file is invalid, the old secrets stay in use.
            let _ = listener.reload_secrets();
        }
    }
    Ok(())
}

fn read(mark: &Path, file: &Path) -> Result<()> {
    let bytes = fs::read(file).with_context(|| file.display().to_string())?;
    let picture = Jpeg::parse(&bytes).with_context(|| file.display().to_string())?;
    let reading = mark_key(mark)?.read(&picture).context("the coded picture is damaged")?;
    let Some(client) = reading.client else {
        bail!(
            "no mark of this key: {:.1} % of {} blocks agree",
            100.0 * reading.agree,
            reading.blocks
        );
    };
    println!("{client}");
    eprintln!("{:.1} % of {} blocks agree", 100.0 * reading.agree, reading.blocks);
    Ok(())
}

fn mark_key(file: &Path) -> Result<Key> {
    let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let text = text.trim();
    let digit =
        |n: usize| text.get(2 * n..2 * n + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
    let mut secret = [0; 32];
    for (n, place) in secret.iter_mut().enumerate() {
        let wrong = || format!("{}: 64 hexadecimal digits are expected", file.display());
        *place = digit(n).filter(|_| text.len() == 64).with_context(wrong)?;
    }
    Ok(Key::new(&secret))
}
