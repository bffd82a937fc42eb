//! `viaduct observe`: losses of a link according to captures of its traffic, and the recoveries
//! that codes would have achieved.
//!
//! ```text
//!   FILE FILE ─▶ capture ─▶ packet ─▶ sizes ─▶ pair   ─┐
//!   FILE      ─▶ capture ─▶ packet ─▶ sizes ─▶ single ─┴▶ fates ─▶ finding ─▶ table, JSON
//! ```

mod capture;
mod finding;
mod packet;
mod pair;
mod single;
mod sizes;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ipnet::IpNet;

use capture::Capture;
use finding::{Findings, Path};

/// Options of `viaduct observe`.
#[derive(Clone, Debug, clap::Args)]
pub struct ObserveArgs {
    /// Capture (pcap or pcapng) of the link's traffic; or two captures, this end's first and then
    /// the other end's
    #[arg(required = true, num_args = 1..=2, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Addresses at this end, required if hop limits do not show which packets were sent from this
    /// end
    #[arg(long, value_name = "PREFIX", value_parser = crate::value_parser::prefix)]
    near: Vec<IpNet>,
    /// Round-trip time of the link [default: measured from the captures]
    #[arg(long, value_name = "TIME", value_parser = crate::value_parser::wait)]
    rtt: Option<Duration>,
    /// Print the results as one JSON object
    #[arg(long)]
    json: bool,
}

/// Round-trip time that is assumed if the captures do not show it.
const USUAL_RTT: Duration = Duration::from_millis(100);

/// Reads the captures, and prints the results. Errors: a file is not a capture or has too many
/// segments, or there is nothing to compare.
pub fn run(args: &ObserveArgs) -> Result<()> {
    let mut captures = Vec::new();
    for file in &args.files {
        captures.push(capture::read(file)?);
    }
    let (paths, seen_rtt) = match &captures[..] {
        [one] => single::paths(&one.packets)?,
        [near, far] => {
            let pair = pair::Pair::new(&near.packets, &far.packets, &args.near)?;
            ensure!(
                pair.matched > 0,
                "no packet of {} is in {}: captures of the same traffic at both ends of a link are \
                 expected",
                args.files[0].display(),
                args.files[1].display()
            );
            pair.paths()?
        }
        _ => bail!("one capture or two are expected"),
    };
    let rtt = args.rtt.or(seen_rtt).unwrap_or(USUAL_RTT);
    let paths: Vec<Path> = paths.into_iter().filter(|path| !path.fates.is_empty()).collect();
    ensure!(
        !paths.is_empty(),
        "nothing to compare: one capture must contain TCP data; two must contain the same packets"
    );
    let findings = Findings::new(&paths, rtt, args.files.len() == 2);
    let text = if args.json {
        serde_json::to_string_pretty(&findings)? + "\n"
    } else {
        let files = args.files.iter().zip(&captures);
        let line =
            |(file, of): (&PathBuf, &Capture)| format!("{}: {}\n", file.display(), of.summary());
        files.map(line).collect::<String>() + &findings.to_string()
    };
    crate::stdout::print(&text)
}
