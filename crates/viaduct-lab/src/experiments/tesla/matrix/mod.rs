//! Real, unmodified programs under handlers, each compared with a direct run.
//!
//! ```text
//!               direct     count, latency, or compress and crypt
//!   server      itself     under the chain, by cgroup, seccomp, preload
//!     ▲
//!   client      itself     under the chain, likewise
//! ```
//!
//! A row is a shell file in `rows`: the command lines of its server and its client. The
//! client's standard output and exit status must be the same in every configuration. The report of
//! the client's `viaduct run` must show that flows passed the handlers or were offloaded, and that
//! no TCP flow went direct.

mod row;
mod server;

use super::undisturbed::undisturbed;
use crate::experiments::prelude::*;
use row::Row;

/// Rows and their included files.
macro_rules! files {
    ($($name:literal)*) => { [$(($name, include_str!(concat!("rows/", $name)))),*] };
}
const FILES: [(&str, &str); 24] = files! {
    "curl.sh" "wget.sh" "wrk.sh" "ssh.sh" "ssh_remote.sh" "git_ssh.sh" "git_http.sh" "rsync.sh"
    "python_http.sh" "python_asyncio.sh" "python_multiprocessing.sh" "node.sh" "go.sh" "java.sh"
    "nc.sh" "socat.sh" "ftp.sh" "ftp_active.sh" "apt.sh" "redis.sh" "postgres.sh" "iperf3.sh"
    "nginx.inc" "sshd.inc"
};

/// Rows of a quick run, for many concurrent connections, an event loop, and forking processes.
const QUICK: [&str; 3] = ["curl", "python_asyncio", "python_multiprocessing"];
/// Interposers; `MATRIX_VIA` selects a single one for debugging.
const VIAS: [&str; 3] = ["cgroup", "seccomp", "preload"];

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/matrix",
    title: "Real programs under `viaduct run`, compared with direct runs",
    figure: "TESLA, sections 3 and 5: unmodified programs",
    finding: "Unmodified programs run under the handlers, ftp, ssh and browsers among them.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    let only = std::env::var("MATRIX_VIA").ok();
    let vias: Vec<_> =
        VIAS.into_iter().filter(|via| only.as_deref().is_none_or(|o| o == *via)).collect();
    let all: Vec<_> = FILES.iter().filter_map(|(file, _)| file.strip_suffix(".sh")).collect();
    let rows = run.choose(&all[..], &QUICK[..]);
    run.param("interposers", vias.clone());
    run.steps(rows.len());
    for (x, name) in rows.iter().enumerate() {
        run.step(name)?;
        compare(run, (x, name), &vias)?;
    }
    Ok(())
}

fn compare(run: &mut Run, (x, name): (usize, &str), vias: &[&str]) -> Result<()> {
    let row = Row::new(name, &FILES)?;
    let missing = row.missing()?;
    if !missing.is_empty() {
        let text = format!("without {}: scripts/need matrix", missing.join(", "));
        run.param(&format!("left out: {name}"), text);
        return Ok(());
    }
    row.set_up()?;
    let plot = Plot::histogram("Duration of a row", ("program", ""), ("time", "s"));
    let direct = row.directly()?;
    run.plot_bar(&plot, "direct", (x, name), direct.seconds);
    let key = row.key()?;
    let chains = [
        ("count", "+count".to_owned()),
        ("latency", "+latency:delay=1ms".to_owned()),
        ("crypt", key),
    ];
    let mut differing = 0;
    // `count` is offloaded to the kernel where possible. The quick run skips it, because chains
    // through Viaduct test more.
    for (chain, handlers) in chains.iter().skip(run.choose(0, 1)) {
        for via in vias {
            let found = row.wrapped(&format!("{chain}-{via}"), handlers, via)?;
            run.plot_bar(&plot, &format!("{chain}, {via}"), (x, name), found.seconds);
            if let Some(what) = row.differs(&direct, &found) {
                differing += 1;
                run.param(&format!("otherwise: {name}, {chain}, {via}"), what);
            }
        }
    }
    let check = format!("{name}: configurations that differ from the direct run");
    run.at_most(&check, f64::from(differing), 0.0);
    Ok(())
}
