//! Forged segments towards both gateways.

use super::world::World;
use super::{FAKE_TCP, LOSSY};
use crate::experiments::prelude::*;
use crate::forge::{ACK, FIN, Forgery, RST, SYN};
use crate::gateways::GatewayStatus;

/// Flags of the forged segments, in turn.
const FLAGS: [u8; 4] = [SYN, RST, FIN | ACK, RST | ACK];
/// Segments per second.
const RATE: u64 = 50_000;
/// Rate of the flow that runs during the forgery, in bits of payload per second.
const PACE: u64 = 20_000_000;
/// Minimum share of the forged segments that the gateways must count: with a smaller share, the
/// experiment would show nothing. The link loses 1 % of the segments to gateway A.
const MIN_COUNTED: f64 = 0.95;
/// Minimum rate of the flow relative to its pace.
const MIN_RATE: f64 = 0.95;

/// Segments and sessions, counted by both gateways.
struct Counts {
    /// Resets, FINs and SYNs received.
    forged: u64,
    /// Handshakes completed.
    handshakes: u64,
    /// Gateways without a session.
    down: u64,
}

impl Counts {
    fn of(world: &World) -> Result<Counts> {
        let both = world.status()?;
        let sum = |count: fn(&GatewayStatus) -> u64| both.iter().map(count).sum::<u64>();
        Ok(Counts {
            forged: sum(|of| of.fake_tcp().resets + of.fake_tcp().syns),
            handshakes: sum(|of| of.peer().session.handshakes),
            down: sum(|of| u64::from(!of.peer().up)),
        })
    }
}

pub(super) fn run(run: &mut Run) -> Result<()> {
    let count = run.choose(1_000_000, 20_000);
    run.param("forged_segments", count);
    run.param("forged_per_second", RATE);
    run.step(&format!("{count} forged segments"))?;
    // Prevents the replacement of sessions because of their age.
    let peer = "rekey_after = \"1h\"\n".to_owned();
    let spec = GatewaySpec { peer, ..GatewaySpec::default() };
    let world = World::start(run, LOSSY, &spec, FAKE_TCP, run.seed())?;
    world.middlebox.leave_own_untracked()?;
    let port = world.port()?;
    let forgery =
        Forgery { count, rate: RATE, flags: &FLAGS, knows_numbers: true, seed: run.seed() };
    let seconds = (count / RATE) as u32 + 3;
    let iperf = Iperf::tcp("cubic", seconds, 0).paced(PACE, 16 << 10);
    let (before, after, rate) = thread::scope(|scope| -> Result<_> {
        let flow = scope.spawn(|| iperf.run(&world.middlebox.a1, &world.middlebox.b1));
        // The flow must have begun, so that the forger sees the connection's sequence numbers.
        stop::sleep(Duration::from_secs(1))?;
        let before = Counts::of(&world)?;
        forgery.send(&world.middlebox, port)?;
        let rate = join(flow)?.received;
        Ok((before, Counts::of(&world)?, rate))
    })?;
    let plot = Plot::histogram("A flow during forged segments", ("", ""), ("goodput", "Mb/s"));
    run.plot_bars(&plot, "flow", [("paced", PACE as f64 / 1e6), ("delivered", rate / 1e6)]);
    run.at_least(
        "goodput during forged segments, relative to the pace",
        rate / PACE as f64,
        MIN_RATE,
    );
    let counted = (after.forged - before.forged) as f64 / count as f64;
    run.at_least("forged segments that the gateways have counted", counted, MIN_COUNTED);
    let lost = after.handshakes - before.handshakes + after.down;
    run.at_most("sessions lost by forged segments", lost as f64, 0.0);
    Ok(())
}
