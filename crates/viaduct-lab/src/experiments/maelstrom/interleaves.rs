//! Choice of code and parameters by loss process: residual losses, recovery latency and cost.
//! Source of the table in `docs/codes.md`.

use viaduct_proto::fec::{AnyDecoder, Code, window};
use viaduct_proto::sim::stream::{Lost, Outcome, Stream};

use crate::experiments::maelstrom::simulated::{
    blocks, delayed, events, latencies_ms, layers, simulate,
};
use crate::experiments::prelude::*;

/// Packets per second: 144 Mb/s of 1500-byte packets.
const RATE: f64 = 12_000.0;

/// Packet length of the simulations in which bytes are counted; the others have short packets,
/// because residual losses do not depend on the length.
const LENGTH: usize = 1500;

/// Approximate bytes of a repair on the wire in addition to its body: IP, UDP, header and the list
/// of its packets.
const REPAIR_OVERHEAD: usize = 120;

/// Three loss processes of 1 %.
const LOSSES: [(&str, &str); 3] =
    [("1%", "independent"), ("1%x8", "bursts of 8"), ("1%x30", "bursts of 30")];

/// Returns a window code over 240 packets.
fn window(repairs: u8, packets: u8) -> Code {
    Code::Window(window::Parameters {
        window: 240,
        repairs: repairs.into(),
        packets: packets.into(),
    })
}

fn candidates() -> Vec<Code> {
    vec![
        layers(8, &[1, 20, 40]),
        delayed(8, &[1, 19, 41]),
        layers(10, &[1, 61, 127]),
        delayed(10, &[1, 61, 127]),
        blocks(100, 40, 1),
        blocks(190, 57, 1),
        blocks(200, 55, 1),
        window(3, 10),
        window(4, 10),
    ]
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "maelstrom/interleaves",
    title: "Choice of a code by loss process: residual losses, latency and cost",
    figure: "Maelstrom, section 4.3.1 (beyond its figures)",
    finding: "Larger interleaves withstand longer bursts at the cost of latency; sending repairs \
              immediately is faster, delaying them recovers more.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.param("packets_per_second", RATE);
    run.param("packet_bytes", LENGTH);
    run.param("loss", "1 %, one way 50 ms");
    run.param("simulated", true);
    let seconds = run.choose(600, 20);
    run.param("seconds", seconds);
    run.steps(LOSSES.len() * candidates().len() + MEMORY.len());
    let mut left = Vec::new();
    for (n, (loss, words)) in LOSSES.iter().enumerate() {
        for code in candidates() {
            run.step(&format!("{code}, {words}"))?;
            let stream = Stream {
                packets: (RATE * f64::from(seconds)) as u64,
                rate: RATE,
                sizes: (16, 16),
                link: link(&format!("delay=50ms,loss={loss}")),
                seed: run.seed(),
                ..Stream::default()
            };
            let outcome = simulate(&stream, &code)?;
            let per_second = unrecovered(&outcome) as f64 / f64::from(seconds);
            record(run, &code, (n, words), per_second, &outcome);
            left.push((*words, code.to_string(), per_second));
            if n == LOSSES.len() - 1 {
                record_price(run, &code, &stream)?;
            }
        }
    }
    memory(run)?;
    checks(run, &left);
    Ok(())
}

/// Counts the loss events with at least one packet that was never recovered.
fn unrecovered(outcome: &Outcome) -> usize {
    let lasting = |event: &&[Lost]| event.iter().any(|lost| lost.recovery.is_none());
    events(outcome).filter(lasting).count()
}

fn record(
    run: &mut Run,
    code: &Code,
    (n, words): (usize, &str),
    per_second: f64,
    outcome: &Outcome,
) {
    let latencies = latencies_ms(outcome);
    let figures = [
        ("Loss events not recovered", ("events", "1/s"), per_second),
        ("Mean recovery latency", ("latency", "ms"), mean(&latencies)),
        ("Recovery latency, 99th percentile", ("latency", "ms"), quantile(&latencies, 0.99)),
    ];
    for (title, y, value) in figures {
        let plot = Plot::histogram(title, ("loss of 1 %", ""), y);
        run.plot_bar(&plot, &code.to_string(), (n, words), value);
    }
}

/// Records the overhead and the decoder's memory, with full-length packets and long bursts.
fn record_price(run: &mut Run, code: &Code, stream: &Stream) -> Result<()> {
    let outcome = simulate(&full_length(stream), code)?;
    let title = "Price, in bursts of 30";
    let plot = Plot::histogram(title, ("", ""), ("overhead in %, memory in kB", ""));
    let memory = outcome.decoder_memory as f64 / 1e3;
    let bars = [("overhead, %", outcome.overhead() * 100.0), ("decoder memory, kB", memory)];
    run.plot_bars(&plot, &code.to_string(), bars);
    Ok(())
}

fn full_length(stream: &Stream) -> Stream {
    let packets = stream.packets.div_ceil(20);
    Stream { packets, sizes: (LENGTH, LENGTH), repair_overhead: REPAIR_OVERHEAD, ..stream.clone() }
}

const MEMORY: [[u16; 3]; 5] =
    [[1, 11, 19], [1, 19, 41], [1, 61, 127], [1, 127, 255], [1, 255, 509]];

fn memory(run: &mut Run) -> Result<()> {
    let plot =
        Plot::line("Memory of (8,3) against its interleaves", ("sum of I", ""), ("memory", "MB"));
    let plot = plot.log_x();
    let encoders = run.series(&plot, "encoder's bins");
    let decoders = run.series(&plot, "decoder's maximum, bursts of 30");
    let spans = run.series(&plot, "packets that the repairs span");
    for interleaves in MEMORY {
        let code = layers(8, &interleaves);
        run.step(&format!("memory of {code}"))?;
        let x: f64 = interleaves.map(f64::from).iter().sum();
        let loss = link("delay=50ms,loss=1%x30");
        let stream = full_length(&Stream {
            packets: run.choose(4_000_000, 800_000),
            rate: RATE,
            link: loss,
            ..Stream::default()
        });
        let mut encoder = code.build_encoder(1)?;
        let outcome = stream.run(&mut *encoder, &mut AnyDecoder::new(64 << 20));
        let label = interleaves.map(|i| i.to_string()).join(",");
        run.labelled_point(encoders, x, encoder.memory() as f64 / 1e6, &label);
        run.labelled_point(decoders, x, outcome.decoder_memory as f64 / 1e6, &label);
        let span = 8 * usize::from(interleaves[2]) * LENGTH;
        run.labelled_point(spans, x, span as f64 / 1e6, &label);
    }
    Ok(())
}

fn checks(run: &mut Run, left: &[(&str, String, f64)]) {
    let of = |loss: &str, code: &Code| {
        let text = code.to_string();
        left.iter().find(|l| l.0 == loss && l.1 == text).map_or(f64::NAN, |l| l.2)
    };
    let (at_once, waiting) = (layers(10, &[1, 61, 127]), delayed(10, &[1, 61, 127]));
    for loss in ["bursts of 8", "bursts of 30"] {
        run.at_most(
            &format!("{loss}, loss events not recovered per second: {waiting}"),
            of(loss, &waiting),
            0.1,
        );
        let name = format!("{loss}, loss events not recovered: {waiting}, relative to immediate");
        run.at_most(&name, of(loss, &waiting) / of(loss, &at_once), 0.2);
        // A block is lost if two bursts hit it: about one block in ten seconds.
        let long = blocks(100, 40, 1);
        run.at_most(
            &format!("{loss}, loss events not recovered per second: {long}"),
            of(loss, &long),
            0.25,
        );
        let sliding = window(3, 10);
        run.at_most(
            &format!("{loss}, loss events not recovered per second: {sliding}"),
            of(loss, &sliding),
            0.1,
        );
    }
}
