//! Figure 3, with a process instead of the paper's virtual machine: time until a newly started
//! proxy serves, and its memory when idle. Then a thousand hops, of which only those in use run.

mod hops;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use crate::cgroup::{Cgroup, Limits};
use crate::experiments::prelude::*;

const PROXY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7000);
const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7001);
/// Time limit of a start, even with few resources.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval of a client's attempts to reach the proxy.
const EVERY: Duration = Duration::from_micros(200);
/// Idle time after which a proxy on demand exits.
const IDLE: &str = "200ms";
/// Maximum milliseconds from exec to the first answer.
const MAX_FROM_EXEC: f64 = 12.0;
/// Maximum milliseconds that starting on demand adds to the first answer.
const MAX_ADDED: f64 = 15.0;
/// Maximum resident megabytes of an idle proxy.
const MAX_RESIDENT: f64 = 6.0;
/// Maximum megabytes of an idle proxy's memory without the pages of the program's file, which all
/// processes share.
const MAX_OWN: f64 = 2.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/start",
    title: "Time from the start of a proxy to its first connection, and its memory",
    figure: "Miniproxy, Figure 3",
    finding: "A minimal machine with a proxy in 6 MB boots in about 30 ms, in time for the \
              connection whose SYN asked for it.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let times = run.choose(25, 7);
    let shares: &[f64] = run.choose(&[100.0, 50.0, 25.0, 10.0], &[25.0]);
    let bounds: &[u64] = run.choose(&[64, 32, 16, 8, 6, 4], &[8]);
    run.param("starts_each", times);
    run.param("on_demand_idle_exit", IDLE);
    run.steps(3 + shares.len() + bounds.len());
    let bench = Bench::new(run)?;
    run.step("unlimited")?;
    let free = bench.measure(Limits::default(), times)?;
    let by_share = Plot::line("Start, by processor", ("share", "%"), ("time", "ms"));
    let by_memory = Plot::line("Start, by memory", ("limit", "MB"), ("time", "ms")).log_x();
    for &percent in shares {
        run.step(&format!("{percent} % of a processor"))?;
        let limits = Limits { processors: Some(percent / 100.0), ..Limits::default() };
        point(run, &by_share, percent, &bench.measure(limits, times)?);
    }
    for &megabytes in bounds {
        run.step(&format!("{megabytes} MB"))?;
        let limits = Limits { memory: Some(megabytes << 20), ..Limits::default() };
        point(run, &by_memory, megabytes as f64, &bench.measure(limits, times)?);
    }
    run.step("resident memory")?;
    let resident = bench.resident()?;
    let plot = Plot::histogram("Resident memory", ("when", ""), ("memory", "MB"));
    run.plot_bars(&plot, "proxy", resident.iter().copied());
    run.at_most("first connection after exec, ms", free.exec, MAX_FROM_EXEC);
    run.at_most("added to the first connection on demand, ms", free.demand - free.warm, MAX_ADDED);
    let most = resident.iter().filter(|(when, _)| when.starts_with("idle"));
    let most = most.map(|(_, megabytes)| *megabytes).fold(0.0, f64::max);
    run.at_most("resident memory of an idle proxy, MB", most, MAX_RESIDENT);
    let own = resident.iter().find(|(when, _)| *when == OWN).map_or(f64::NAN, |(_, of)| *of);
    run.at_most("private memory of an idle proxy, MB", own, MAX_OWN);
    run.step("1,000 hops on demand")?;
    hops::measure(run, &bench, run.choose(1_000, 20))
}

/// Label of the memory that only the proxy itself uses: the anonymous pages of an idle proxy.
const OWN: &str = "idle, private";

/// Median times in milliseconds.
struct Times {
    /// Time from exec until a client had the server's answer.
    exec: f64,
    /// Time from a client's SYN to its answer, with a proxy on demand.
    demand: f64,
    /// Time from a client's SYN to its answer, with a running proxy.
    warm: f64,
}

fn point(run: &mut Run, plot: &Plot, x: f64, times: &Times) {
    run.plot_point(plot, "from exec", (x, times.exec));
    run.plot_point(plot, "from the first SYN, on demand", (x, times.demand));
}

struct Bench {
    node: Node,
    _server: Echo,
    scratch: Scratch,
}

impl Bench {
    fn new(run: &Run) -> Result<Bench> {
        let node = Node::new("host", run.journal())?;
        let server = Echo::new(node.netns().enter(|| TcpListener::bind(SERVER))??)?;
        Ok(Bench { node, _server: server, scratch: Scratch::new()? })
    }

    fn measure(&self, limits: Limits, times: usize) -> Result<Times> {
        let mut exec = Vec::new();
        for _ in 0..times {
            stop::check()?;
            let group = Cgroup::new(limits)?;
            let mut proxy = self.prepare(&group, &[])?;
            let begun = begin(&mut proxy)?;
            exec.push(millis(self.node.netns().enter(|| self.first(begun))??));
        }
        let group = Cgroup::new(limits)?;
        let mut parent = self.prepare(&group, &["--on-demand", "--idle-exit", IDLE])?;
        let begun = begin(&mut parent)?;
        self.node.netns().enter(|| self.first(begun))??;
        let (mut demand, mut warm) = (Vec::new(), Vec::new());
        for _ in 0..times {
            self.wait_until_alone(&parent)?;
            let both =
                || -> Result<_> { Ok((self.first(Instant::now())?, self.first(Instant::now())?)) };
            let (cold, again) = self.node.netns().enter(both)??;
            demand.push(millis(cold));
            warm.push(millis(again));
        }
        Ok(Times { exec: median(&exec), demand: median(&demand), warm: median(&warm) })
    }

    /// Prepares a proxy in `group` that waits for [`begin`].
    fn prepare(&self, group: &Cgroup, more: &[&str]) -> Result<Process> {
        let (at, to) = (PROXY.to_string(), SERVER.to_string());
        let run_dir = self.scratch.path().display().to_string();
        let own = ["proxy", "--listen", &at, "--to", &to, "--run-dir", &run_dir];
        let mut command = group.command(&self.node, &binary()?, &[&own, more].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = self.node.spawn(command)?;
        // Time for the shell to read its script and join the group.
        thread::sleep(Duration::from_millis(20));
        Ok(process)
    }

    /// Connects repeatedly until accepted, and waits until the server has sent a byte back; returns
    /// the time since `begun`.
    fn first(&self, begun: Instant) -> Result<Duration> {
        let mut client = loop {
            match TcpStream::connect(PROXY) {
                Ok(client) => break client,
                Err(error) if error.kind() != ErrorKind::ConnectionRefused => bail!(error),
                Err(_) if begun.elapsed() > START_TIMEOUT => bail!("no proxy in {START_TIMEOUT:?}"),
                Err(_) => thread::sleep(EVERY),
            }
        };
        client.set_read_timeout(Some(START_TIMEOUT))?;
        client.write_all(b"?")?;
        client.read_exact(&mut [0]).context("the server does not answer through the proxy")?;
        Ok(begun.elapsed())
    }

    fn wait_until_alone(&self, parent: &Process) -> Result<()> {
        let is_alone = || children(parent.id()).is_ok_and(|children| children.is_empty());
        let alone = stop::wait_until(START_TIMEOUT, Duration::from_millis(10), is_alone)?;
        ensure!(alone, "a proxy on demand does not exit when it is idle");
        Ok(())
    }

    /// Returns the memory of a proxy in megabytes at several moments.
    fn resident(&self) -> Result<Vec<(&'static str, f64)>> {
        let group = Cgroup::new(Limits::default())?;
        let mut proxy = self.prepare(&group, &[])?;
        let begun = begin(&mut proxy)?;
        self.node.netns().enter(|| self.first(begun))??;
        thread::sleep(Duration::from_secs(1));
        let after = megabytes(proxy.id(), "VmRSS")?;
        let (anonymous, most) =
            (megabytes(proxy.id(), "RssAnon")?, megabytes(proxy.id(), "VmHWM")?);
        drop(proxy);
        let mut parent = self.prepare(&group, &["--on-demand", "--idle-exit", IDLE])?;
        let begun = begin(&mut parent)?;
        self.node.netns().enter(|| self.first(begun))??;
        let [child] = children(parent.id())?[..] else { bail!("no proxy was started") };
        thread::sleep(Duration::from_millis(100));
        let fresh = megabytes(child, "VmRSS")?;
        self.wait_until_alone(&parent)?;
        Ok(vec![
            ("idle, after a flow", after),
            (OWN, anonymous),
            ("idle, on demand", fresh),
            ("idle, the parent on demand", megabytes(parent.id(), "VmRSS")?),
            ("maximum, during the start", most),
        ])
    }
}

/// Server that echoes one byte per connection; stopped when dropped.
struct Echo {
    listener: TcpListener,
    thread: Option<thread::JoinHandle<()>>,
}

impl Echo {
    fn new(listener: TcpListener) -> Result<Echo> {
        let own = listener.try_clone()?;
        let serve = move || {
            while let Ok((mut client, _)) = own.accept() {
                // A thread per connection, because the first connection may stay unused.
                thread::spawn(move || {
                    let mut byte = [0];
                    let read = client.read_exact(&mut byte);
                    read.and_then(|()| client.write_all(&byte))
                });
            }
        };
        Ok(Echo { listener, thread: Some(thread::spawn(serve)) })
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Executes the proxy that [`Bench::prepare`] has prepared; returns the current time.
fn begin(proxy: &mut Process) -> Result<Instant> {
    let mut stdin = proxy.stdin.take().context("the proxy's standard input is not piped")?;
    let begun = Instant::now();
    stdin.write_all(b"\n")?;
    Ok(begun)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn children(process: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        // The thread may have ended in the meantime.
        let text = fs::read_to_string(task?.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Ok(all)
}

/// Reads a size in megabytes from `/proc/<process>/status`.
fn megabytes(process: u32, what: &str) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(what)?.strip_prefix(':'));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    Ok(number.with_context(|| format!("no {what} of process {process}"))? / 1024.0)
}
