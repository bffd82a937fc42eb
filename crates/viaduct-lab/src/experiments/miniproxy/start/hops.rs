//! A thousand hops of one agent, each started by its first SYN.

use std::fmt::Write as _;
use std::net::{TcpListener, TcpStream};

use super::{Bench, MAX_FROM_EXEC, START_TIMEOUT, megabytes, millis};
use crate::experiments::prelude::*;

/// Number of defined hops.
const HOPS: u16 = 1_000;
/// Port of the first hop; each hop has its own.
const FIRST_PORT: u16 = 20_000;
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7002);
/// Maximum memory of the agent while no hop runs, in megabytes.
const MAX_AGENT: f64 = 50.0;

/// Measures an agent of [`HOPS`] hops, and starts `used` of them.
pub(super) fn measure(run: &mut Run, bench: &Bench, used: u16) -> Result<()> {
    run.param("hops_defined", HOPS);
    run.param("hops_started", used);
    let memory = Plot::line("Memory of hops on demand", ("hops", ""), ("memory", "MB"));
    for defined in [1, HOPS / 4, HOPS / 2, HOPS] {
        let mut agent = agent(bench, defined)?;
        let idle = settled(agent.process().id())?;
        run.plot_point(&memory, "agent, by hops defined", (defined.into(), idle));
        if defined == HOPS {
            let name = "1,000 hops on demand: memory of the agent while all are idle, MB";
            run.at_most(name, idle, MAX_AGENT);
            start_some(run, bench, &mut agent, used, &memory)?;
        }
    }
    Ok(())
}

/// Starts hops one after the other, each by its first client.
fn start_some(
    run: &mut Run,
    bench: &Bench,
    agent: &mut Proxy,
    used: u16,
    memory: &Plot,
) -> Result<()> {
    let server = bench.node.netns().enter(|| TcpListener::bind(SERVER))??;
    let times = Plot::scatter("Start of a hop by its SYN", ("hops that run", ""), ("time", "ms"));
    let mut cold = Vec::new();
    for n in 0..used {
        stop::check()?;
        let hop = SocketAddr::new(SERVER.ip(), FIRST_PORT + n);
        let time = millis(bench.node.netns().enter(|| onward(hop, &server))??);
        run.plot_point(&times, "SYN to outbound SYN", (n.into(), time));
        cold.push(time);
    }
    let running = children_memory(agent.process().id())?;
    run.plot_point(memory, "all processes, by hops that run", (used.into(), running));
    let name = "1,000 hops on demand: SYN to outbound SYN of a cold hop, median, ms";
    run.at_most(name, median(&cold), MAX_FROM_EXEC);
    Ok(())
}

/// Connects to a hop. Returns the time until the server has accepted the hop's connection, whose
/// handshake takes a negligible time on this host.
fn onward(hop: SocketAddr, server: &TcpListener) -> Result<Duration> {
    let begun = Instant::now();
    let connect = thread::spawn(move || TcpStream::connect_timeout(&hop, START_TIMEOUT));
    server.accept()?;
    let took = begun.elapsed();
    // The hop keeps running: it exits only after it has been idle for `--idle-exit`.
    connect.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
    Ok(took)
}

fn agent(bench: &Bench, hops: u16) -> Result<Proxy> {
    let mut text = String::new();
    for n in 0..hops {
        let at = SocketAddr::new(SERVER.ip(), FIRST_PORT + n);
        write!(text, "[[hop]]\nname = 'hop-{n}'\nlisten = '{at}'\nto = '{SERVER}'\n")?;
    }
    Proxy::hop_agent(&bench.node, &text, &["--idle-exit", "10m"])
}

/// Returns the memory of a process in megabytes, half a second after its start.
fn settled(process: u32) -> Result<f64> {
    thread::sleep(Duration::from_millis(500));
    megabytes(process, "VmRSS")
}

/// Returns the memory of a process and its children in megabytes. Shared pages count once.
fn children_memory(process: u32) -> Result<f64> {
    let all = super::children(process)?.into_iter().chain([process]);
    let share = |process: u32| -> Result<f64> {
        let text = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
        Ok(number.context("no Pss")? / 1024.0)
    };
    all.map(share).sum()
}
