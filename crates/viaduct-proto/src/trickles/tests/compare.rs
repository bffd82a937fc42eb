//! Throughput and windows compared with Reno's, for the tables of `docs/measurements/trickles.md`.

use crate::link::LinkConfig;
use crate::sim::trickles::{Contest, Outcome};
use crate::time::Duration;
use crate::trickles::server::Settings;

const SEEDS: u64 = 6;

fn contest(up: &str, down: &str, seed: u64) -> Contest {
    let link = |text: &str| text.parse::<LinkConfig>().unwrap();
    Contest {
        up: link(up),
        down: link(down),
        settings: Settings::default(),
        seed: 10 * seed,
        time: Duration::from_secs(20),
        step: Duration::from_millis(50),
    }
}

/// Prints a line of the table, and returns the ratios of our packets and bytes to Reno's, over all
/// seeds.
fn compare(up: &str, down: &str) -> [f64; 2] {
    let mut sum = Outcome::default();
    let add = |sum: &mut [u64; 2], more: [u64; 2]| (0..2).for_each(|i| sum[i] += more[i]);
    let mut spread = Vec::new();
    for seed in 0..SEEDS {
        let one = contest(up, down, seed).run();
        add(&mut sum.packets, one.packets);
        add(&mut sum.bytes, one.bytes);
        add(&mut sum.recoveries, one.recoveries);
        add(&mut sum.timeouts, one.timeouts);
        spread.push(one.packets[0] as f64 / one.packets[1] as f64);
    }
    spread.sort_by(f64::total_cmp);
    let ratios = [sum.packets, sum.bytes].map(|[ours, renos]| ours as f64 / renos as f64);
    println!(
        "{up} | {down} | packets {:.3} ({:.3} to {:.3}) bytes {:.3} | recoveries {:?} timeouts \
            {:?}",
        ratios[0],
        spread[0],
        spread[spread.len() - 1],
        ratios[1],
        sum.recoveries,
        sum.timeouts
    );
    ratios
}

/// Some packets arrive 4 ms late, which is seven packet times at this rate, and none is lost.
/// Reno's sender treats late packets as lost.
#[test]
fn the_client_adapts_to_reordering() {
    let down = "rate=20M,delay=25ms,queue=250kB,reorder=30%:4ms";
    let [packets, _] = compare("delay=25ms", down);
    assert!(packets > 1.5, "{packets:.3} of Reno's packets");
    let one = contest("delay=25ms", down, 0).run();
    assert!(one.recoveries[0] < 10, "{} recoveries in twenty seconds", one.recoveries[0]);
}

/// Random and burst losses in the direction of the data.
#[test]
fn throughput_equals_renos_if_data_are_lost() {
    for (delay, loss) in [("10ms", "0.1%"), ("25ms", "1%"), ("20ms", "0.5%x4"), ("25ms", "0.2%x8")]
    {
        let down = format!("rate=20M,delay={delay},queue=250kB,loss={loss}");
        let [packets, bytes] = compare(&format!("delay={delay}"), &down);
        assert!((0.9..1.1).contains(&packets), "{down}: {packets:.3} of Reno's packets");
        assert!((0.9..1.1).contains(&bytes), "{down}: {bytes:.3} of Reno's bytes");
    }
}

/// In TCP the next acknowledgement makes up for a lost one; in Trickles the next request makes up
/// for a lost request.
#[test]
fn throughput_equals_renos_if_requests_are_lost() {
    for loss in ["0.1%", "1%", "0.5%x4"] {
        let up = format!("delay=20ms,loss={loss}");
        let [packets, _] = compare(&up, "rate=20M,delay=20ms,queue=250kB");
        assert!((0.9..1.1).contains(&packets), "{up}: {packets:.3} of Reno's packets");
    }
}

/// Prints every fourth sample of both windows, and checks that their means are equal.
#[test]
fn windows_equal_renos() {
    for (delay, loss) in [("10ms", "0.1%"), ("25ms", "1%"), ("25ms", "0.2%x8")] {
        let down = format!("rate=20M,delay={delay},queue=250kB,loss={loss}");
        let outcome = contest(&format!("delay={delay}"), &down, 0).run();
        println!("{down}\n  seconds  window, Reno's  packets, Reno's");
        for sample in outcome.trace.iter().step_by(4).take(40) {
            let ([ours, renos], packets) = (sample.windows, sample.packets);
            println!("  {:7.2} {ours:7} {renos:7} {packets:?}", sample.at.as_secs_f64());
        }
        let mean = |of: usize| {
            let sum: u64 = outcome.trace.iter().map(|sample| sample.windows[of]).sum();
            sum as f64 / outcome.trace.len() as f64
        };
        let ratio = mean(0) / mean(1);
        assert!((0.85..1.15).contains(&ratio), "{down}: {ratio:.3} of Reno's mean window");
    }
}

/// Bytes of data per packet, with complete continuations and with deltas (5.3).
#[test]
fn deltas_make_more_room_for_data() {
    let share = |delta: bool| {
        let mut contest = contest("delay=25ms", "rate=20M,delay=25ms,queue=250kB,loss=0.2%x8", 0);
        contest.settings.delta = delta;
        let outcome = contest.run();
        outcome.bytes[0] as f64 / outcome.packets[0] as f64
    };
    let [whole, delta] = [share(false), share(true)];
    println!(
        "bytes of data in a packet of 1,400: {whole:.1} with complete continuations, {delta:.1} \
         with deltas"
    );
    assert!(delta > whole + 12.0, "{whole:.1}, {delta:.1}");
}
