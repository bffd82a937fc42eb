//! SYNs with a spoofed source address: bytes that the victim receives per byte that the
//! attacker sends, by Trickles and by the kernel's TCP.

use viaduct_proto::trickles::packet::Numbers;
use viaduct_proto::trickles::wire::request::{emit_open, emit_padding};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::socket::mmsg::Outbox;

use super::Counts;
use crate::experiments::prelude::*;
use crate::experiments::trickles::replicas::{Replicas, SERVICE, Service};
use crate::experiments::trickles::served::PORT;
use crate::flood::syn;

/// SYNs of each kind.
const SYNS: u16 = 200;
const FIRST_PORT: u16 = 20_000;
const MTU: usize = 1500;

/// Counts the packets that reach the victim and drops them, so that the victim does not answer.
const RULES: &str = "table inet victim {
    counter got {}
    chain seen {
        type filter hook prerouting priority raw;
        tcp sport 80 counter name got drop
    }
}";

pub(super) fn run(run: &mut Run, world: &Replicas, server: &Service) -> Result<()> {
    let [attacker, victim] = world.net.hosts_a() else { bail!("two hosts are expected") };
    victim.run("nft", &[RULES])?;
    let to = std::net::SocketAddrV4::new(SERVICE, PORT);
    let from = |n: u16| std::net::SocketAddrV4::new(victim.v4(), FIRST_PORT + n);
    let mut rng = Rng::from_seed(run.seed());
    let before = Counts::read(server)?;
    let mut open = |n: u16| -> Result<Vec<u8>> {
        let mut message = Vec::new();
        emit_open(0, rng.next_u64(), 1_400, &mut message);
        // Lengths range from too short for any answer to the maximum.
        emit_padding(usize::from(n) * 1_300 / usize::from(SYNS), &mut message);
        message.push(0);
        message.extend_from_slice(b"GET /file HTTP/1.1\r\nHost: lab\r\n\r\n");
        let remote = SocketAddr::V4(to);
        let mut packet = Vec::new();
        let mut numbers = Numbers::new(SocketAddr::V4(from(n)), remote, rng.next_u64() as u32);
        numbers.request(&message, 0, MTU, &mut packet).context("cannot build the SYN")?;
        Ok(packet)
    };
    let ours = (0..SYNS).map(&mut open).collect::<Result<Vec<_>>>()?;
    let theirs = (0..SYNS).map(|n| syn(from(SYNS + n), to, n.into())).collect::<Vec<_>>();
    let wait = Duration::from_secs(run.choose(35, 2));
    let ours = reflected(attacker, victim, &ours, Duration::from_secs(1))?;
    let counts = Counts::read(server)?.since(before);
    // A kernel retransmits its SYN-ACK after 1, 3, 7, 15 and 31 s.
    let theirs = reflected(attacker, victim, &theirs, wait)?;
    let plot =
        Plot::histogram("SYNs with a spoofed source", ("server", ""), ("bytes", "per byte sent"));
    let bars = [("Trickles", ours), ("kernel TCP", theirs)];
    run.plot_bars(&plot, "bytes to the victim", bars);
    run.param("kernel_syn_acks_waited_s", wait.as_secs());
    run.within("SYNs: bytes to the victim per byte sent", ours, 0.1, 1.0);
    run.at_least("SYNs: too short, counted as greedy", counts.greedy as f64, 1.0);
    Ok(())
}

/// Returns the IP bytes that the victim receives per byte sent.
fn reflected(attacker: &Node, victim: &Node, packets: &[Vec<u8>], wait: Duration) -> Result<f64> {
    let before = got(victim)?;
    let raw = attacker.netns().enter(RawSockets::open)??;
    let mut sent = 0;
    for packet in packets {
        let mut outbox = Outbox::default();
        outbox.push(packet, SocketAddr::new(SERVICE.into(), 0), None);
        let report = outbox.flush(raw.socket(true).context("there is no raw IPv4 socket")?);
        ensure!(report.sent == 1, "a packet was not sent: {report:?}");
        sent += packet.len();
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(wait);
    Ok((got(victim)? - before) as f64 / sent as f64)
}

/// Returns the bytes received by the victim.
fn got(victim: &Node) -> Result<u64> {
    let text = victim.run("nft", &["list counter inet victim got"])?;
    let bytes = text.split("bytes ").nth(1).and_then(|rest| rest.split_whitespace().next());
    bytes.and_then(|bytes| bytes.parse().ok()).context("cannot read the victim's counter")
}
