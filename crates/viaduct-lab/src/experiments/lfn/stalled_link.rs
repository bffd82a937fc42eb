//! Effect of one silent link of a tunnel on its sessions.
//!
//! ```text
//!   a1  echo sessions ─▶ a2 near ══ link 1 ══ gwa ╳ ══ far b2 ─▶ b1     these wait
//!                           └────── link 2, 3, … ═════▶ ┘               these must not
//! ```

use super::small_site::SmallSites;
use crate::example_tunnel::Links;
use crate::experiments::prelude::*;
use crate::topology::programs::sessions::echo;

const SESSIONS: usize = 6;
const INTERVAL: Duration = Duration::from_millis(50);
/// Time from the start of the sessions to the silence, and the length of the silence.
const SILENCE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_millis(1500));
const DURATION: Duration = Duration::from_secs(7);
/// Echo time above which a session counts as stalled; the round trip is 300 ms.
const LATE: Duration = Duration::from_millis(600);

/// Measures with one link and with three, and checks both.
pub(super) fn measure(run: &mut Run) -> Result<()> {
    let (seed, journal) = (run.seed(), run.journal().clone());
    let counts = [1, 3];
    let waited = parallel(counts, |count| waited(Links::tcp(count), seed, &journal))?;
    run.param("silence_of_a_link_ms", SILENCE.1.as_millis() as u64);
    let title = format!("Number of {SESSIONS} sessions that wait for the silent link");
    let plot = Plot::histogram(&title, ("links", ""), ("sessions", ""));
    let points = counts.iter().zip(&waited).map(|(count, waited)| (*count as f64, *waited as f64));
    run.plot_points(&plot, "tunnel", points);
    let all = SESSIONS as f64;
    run.at_least("1 link falls silent: sessions that wait", waited[0] as f64, all);
    let name = "1 link of 3 falls silent: sessions that wait (2 use this link)";
    run.within(name, waited[1] as f64, 1.0, all / 3.0);
    Ok(())
}

/// Counts the sessions that wait while one link is silent.
fn waited(links: Links, seed: u64, journal: &Journal) -> Result<usize> {
    let SmallSites { tunnel, world, .. } = &SmallSites::build(links, seed, journal)?;
    let (a1, to) = (world.a1(), tunnel.entrance());
    thread::scope(|scope| {
        let session = |_| scope.spawn(|| echo(a1, to, INTERVAL, DURATION));
        let sessions: Vec<_> = (0..SESSIONS).map(session).collect();
        thread::sleep(SILENCE.0);
        silence_one(&world.hosts_a()[1], world.gateway_a(), tunnel.links_port())?;
        let mut waited = 0;
        for session in sessions {
            let late = |time: &Option<Duration>| time.is_none_or(|time| time > LATE);
            waited += usize::from(join(session)?.iter().any(late));
        }
        Ok(waited)
    })
}

/// Makes the router drop the packets of one link from `near` for a while.
fn silence_one(near: &Host, router: &Node, links_port: u16) -> Result<()> {
    let of_links = format!("dport = :{links_port}");
    let shown = near.run("ss", &["-tnH", "state", "established", &of_links])?;
    // Format "0 0 10.1.2.2:40000 10.2.2.2:7600".
    let port = shown.lines().next().and_then(|line| {
        let local = line.split_whitespace().nth(2)?;
        local.rsplit_once(':').map(|(_, port)| port)
    });
    let Some(port) = port else { bail!("no link is established: {shown:?}") };
    let rules = format!(
        "table inet silence {{\nchain forward {{\ntype filter hook forward priority 0\n\
         tcp sport {port} drop\ntcp dport {port} drop\n}}\n}}"
    );
    router.run("nft", &[&rules])?;
    thread::sleep(SILENCE.1);
    router.run("nft", &["delete", "table", "inet", "silence"])?;
    Ok(())
}
