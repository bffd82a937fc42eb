//! Misbehaving clients, concurrent with honest ones under the same losses: they hide their losses,
//! or request too much.

use super::Counts;
use super::raw_client::{RawClient, Step};
use crate::experiments::prelude::*;
use crate::experiments::trickles::replicas::{Replicas, SERVICE};
use crate::experiments::trickles::served::PORT;

/// Link with losses that keep all flows far below its rate.
const LINK: &str = "rate=200M,delay=10ms,queue=1MB,loss=1%";
/// Size of the file: more than any client fetches.
const FILE: u64 = 1 << 32;
const EACH: usize = 3;
const WARM_UP: Duration = Duration::from_secs(1);

/// Client behaviour: treatment of the messages of its honest core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Honest,
    /// Claims that all packets arrived although some were lost; reports the losses in restarts.
    Hides,
    /// Makes the same false claim in restarts as well.
    HidesAlways,
    /// Suppresses messages that would report a loss.
    IsSilent,
    /// Sends the false claim a moment before the true report; the server may answer either first.
    HidesFirst,
    /// Restarts with every third continuation, and also continues with it.
    Restarts,
    /// Sends each request three times.
    Repeats,
}

const BEHAVIOURS: [(Behaviour, &str); 7] = [
    (Behaviour::Honest, "honest"),
    (Behaviour::Hides, "hides losses"),
    (Behaviour::HidesAlways, "hides losses in restarts as well"),
    (Behaviour::IsSilent, "suppresses reports of losses"),
    (Behaviour::HidesFirst, "hides losses first, then reports them"),
    (Behaviour::Restarts, "restarts and also continues"),
    (Behaviour::Repeats, "repeats each request"),
];

impl Behaviour {
    /// Returns the maximum throughput relative to an honest client. The limit allows for the spread
    /// of three flows under random losses, but not for an advantage. A client that repeats its
    /// requests loses fewer of them, at the cost of sending more.
    fn most(self) -> f64 {
        match self {
            Behaviour::Repeats => 1.25,
            _ => 1.1,
        }
    }

    /// Returns the messages sent in place of `message`, and whether one of them is a lie.
    fn messages(self, message: Vec<u8>, rng: &mut Rng) -> (Vec<Vec<u8>>, bool) {
        let Some(step) = Step::parse(&message) else { return (vec![message], false) };
        let losses = step.reports_losses();
        let lie = |rng: &mut Rng| step.without_losses(rng.next_u64() | 1);
        match self {
            Behaviour::Hides if losses && step.is_step() => (vec![lie(rng)], true),
            Behaviour::HidesAlways if losses => (vec![lie(rng)], true),
            Behaviour::IsSilent if losses && step.is_step() => (Vec::new(), true),
            Behaviour::HidesFirst if losses => (vec![lie(rng), message], true),
            Behaviour::Restarts if step.is_step() && rng.below(3) == 0 => {
                (vec![step.restarting(), message], true)
            }
            Behaviour::Repeats => (vec![message; 3], true),
            _ => (vec![message], false),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct FlowResult {
    bits: f64,
    lies: u64,
}

pub(super) fn run(run: &mut Run) -> Result<()> {
    let time = Duration::from_secs(run.choose(30, 3));
    run.param("liars_s", time.as_secs());
    run.param("liars_link", LINK);
    let wan = Wan::emulated(LINK.parse()?, run.seed());
    let world = Replicas::build(1, wan, run.journal())?;
    world.sparse("file", FILE)?;
    let server = world.serve(0, &[])?;
    let (host, seed) = (world.net.a1(), run.seed());
    let all = parallel(0..BEHAVIOURS.len() * EACH, |n| {
        run_flow(host, BEHAVIOURS[n / EACH].0, time, seed + n as u64)
    })?;
    let all: Vec<&[FlowResult]> = all.chunks(EACH).collect();
    let counts = Counts::read(&server)?;
    let plot = Plot::histogram("Throughput at 1 % loss", ("client", ""), ("throughput", "Mb/s"));
    let rate = |flows: &[FlowResult]| mean_of(flows, |flow| flow.bits);
    let honest = rate(all[0]);
    for (n, (flows, (behaviour, name))) in all.iter().zip(BEHAVIOURS).enumerate() {
        run.plot_bar(&plot, "mean of three", (n, name), rate(flows) / 1e6);
        if behaviour == Behaviour::Honest {
            run.at_least("honest clients: throughput, Mb/s", honest / 1e6, 1.0);
        } else {
            let name = format!("client that {name}: throughput, relative to an honest client");
            run.at_most(&name, rate(flows) / honest, behaviour.most());
        }
    }
    let lies = |behaviour: Behaviour| {
        let of = BEHAVIOURS.iter().zip(&all).filter(move |((one, _), _)| *one == behaviour);
        of.flat_map(|(_, flows)| flows.iter()).map(|flow| flow.lies).sum::<u64>() as f64
    };
    let hidden =
        lies(Behaviour::Hides) + lies(Behaviour::HidesAlways) + lies(Behaviour::HidesFirst);
    // Some lies are lost on the way; others are stale or superseded before the server checks
    // their proof.
    let share = counts.unproven as f64 / hidden;
    run.within("false claims counted by the server, relative to those sent", share, 0.8, 1.2);
    Ok(())
}

fn run_flow(host: &Host, behaviour: Behaviour, time: Duration, seed: u64) -> Result<FlowResult> {
    let to = SocketAddr::new(SERVICE.into(), PORT);
    let mut rng = Rng::from_seed(seed);
    let mut client = RawClient::new(host, to, "file", rng.next_u64())?;
    let (begun, mut result, mut before) = (Instant::now(), FlowResult::default(), None);
    while begun.elapsed() < WARM_UP + time {
        stop::check()?;
        client.turn(Duration::from_millis(20))?;
        for message in std::mem::take(&mut client.held) {
            let (said, lies) = behaviour.messages(message, &mut rng);
            result.lies += u64::from(lies);
            for message in said {
                client.send(&message)?;
            }
        }
        if begun.elapsed() > WARM_UP {
            before.get_or_insert(client.got);
        }
    }
    let bytes = client.got - before.unwrap_or(0);
    Ok(FlowResult { bits: bytes as f64 * 8.0 / time.as_secs_f64(), ..result })
}
