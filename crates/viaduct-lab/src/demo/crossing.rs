//! The experiment: four programs cross the link, without and with gateways.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::ABOUT;
use super::findings::{Counters, Figure, Findings, Phase, Program, Setup};
use super::programs::Size;
use super::settings::{DemoArgs, rounded};
use crate::emulator::Direction;
use crate::experiment::{About, Experiment, Run};
use crate::gateways::{GatewaySpec, Gateways};
use crate::topology::programs::WebServer;
use crate::world::World;

/// MTU of every link: Ethernet's, which nearly all networks have.
const MTU: u32 = 1500;

/// The demo's experiment.
#[derive(Debug)]
pub(super) struct Crossing {
    args: DemoArgs,
    /// Directory of the gateways' status sockets, if the dashboard reads them.
    run_dir: Option<PathBuf>,
    findings: Mutex<Findings>,
}

impl Crossing {
    /// Creates the experiment over the link that `args` describe.
    pub(super) fn new(args: DemoArgs, run_dir: Option<PathBuf>) -> Crossing {
        Crossing { args, run_dir, findings: Mutex::default() }
    }

    /// Returns the findings so far.
    pub(super) fn findings(&self) -> Findings {
        self.findings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, with: impl FnOnce(&mut Findings)) {
        with(&mut self.findings.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Runs the programs of each phase, one after another, over the phase's link.
    fn cross(&self, run: &mut Run, world: &mut World, web: &WebServer) -> anyhow::Result<()> {
        for phase in [Phase::Requested].into_iter().chain(Phase::OTHERS) {
            let emulator = world.emulator().context("the link is not emulated")?;
            for direction in [Direction::AtoB, Direction::BtoA] {
                emulator.set(direction, self.args.link_of(phase))?;
            }
            self.cross_one(run, world, web, phase)?;
        }
        Ok(())
    }

    fn cross_one(
        &self,
        run: &mut Run,
        world: &mut World,
        web: &WebServer,
        phase: Phase,
    ) -> anyhow::Result<()> {
        let size = Size::new(&self.args);
        let setup = if world.gateways().is_some() { Setup::Viaduct } else { Setup::Plain };
        let mut before = Counters { overfilled: queue_drops(world)?, ..Counters::default() };
        if let Some(gateways) = world.gateways() {
            before = Counters { overfilled: before.overfilled, ..read_counters(gateways)? };
        }
        for &program in phase.programs() {
            let link = phase.name().map_or(String::new(), |name| format!(" ({name})"));
            run.step(&format!("{}: {}{link}", setup.name(), program.name(&size)))?;
            let figure = program.measure(run, world, web, &size, (phase, setup))?;
            self.note(|findings| findings.add(phase, program, setup, figure));
            if let Some(gateways) = world.gateways() {
                let counters = read_counters(gateways)?;
                let counters = Counters { overfilled: queue_drops(world)?, ..counters };
                self.note(|findings| findings.add_counters(phase, program, counters - before));
                before = counters;
            }
        }
        Ok(())
    }

    fn params(&self, run: &mut Run) {
        let size = Size::new(&self.args);
        run.param("link", self.args.link().to_string());
        run.param("code", self.args.code());
        run.param("mtu", MTU);
        run.param("file_bytes", size.file);
        run.congestion_control("cubic");
        run.congestion_control("bbr");
    }

    /// Checks the demo's claims, which are made for the default link only.
    fn checks(&self, run: &mut Run) {
        let findings = self.findings();
        let factor = |program| findings.factor(program).unwrap_or(f64::NAN);
        if self.args.is_standard() {
            run.at_least(
                "cubic with Viaduct, relative to plain cubic",
                factor(Program::Cubic),
                20.0,
            );
            if !self.args.quick {
                let name = "time of the plain download, relative to that with Viaduct";
                run.at_least(name, factor(Program::Download), 2.0);
                let name = "p99 delay of plain messages, relative to that with Viaduct";
                run.at_least(name, factor(Program::Messages), 1.5);
            }
        }
    }
}

impl Experiment for Crossing {
    fn about(&self) -> About {
        ABOUT
    }

    fn run(&self, run: &mut Run) -> anyhow::Result<()> {
        self.params(run);
        let others = Phase::OTHERS.iter().map(|phase| phase.programs().len()).sum::<usize>();
        run.steps(2 * (Program::ALL.len() + others));
        let mut world = World::new((MTU, MTU), &self.args.link(), run.seed(), run.journal())?;
        // A web server has no option for its congestion control; the host's default is set instead.
        world.b1().set_congestion_control("cubic")?;
        let web = WebServer::start(world.b1(), Size::new(&self.args).file, run.seed())?;
        run.param("web_server", web.software());
        self.cross(run, &mut world, &web)?;
        world.protect(&GatewaySpec { run_dir: self.run_dir.clone(), ..self.args.gateways() })?;
        self.cross(run, &mut world, &web)?;
        self.figures(run);
        self.checks(run);
        Ok(())
    }
}

impl Crossing {
    /// Records the table's figures and the gateways' counters in the JSON.
    fn figures(&self, run: &mut Run) {
        let findings = self.findings();
        for phase in [Phase::Requested].into_iter().chain(Phase::OTHERS) {
            let prefix =
                phase.name().map_or(String::new(), |_| format!("{phase:?}_").to_lowercase());
            for (program, counters) in findings.counters(phase) {
                let key = prefix.clone() + &format!("{program:?}").to_lowercase();
                run.param(
                    &format!("{key}_repair_bytes_per_data_byte"),
                    rounded(counters.overhead()),
                );
                run.param(&format!("{key}_packets_lost"), counters.lost);
                run.param(&format!("{key}_packets_rebuilt"), counters.recovered);
                run.param(&format!("{key}_queue_drops"), counters.overfilled);
            }
            for &program in phase.programs() {
                for setup in [Setup::Plain, Setup::Viaduct] {
                    let key = prefix.clone() + &format!("{program:?}_{setup:?}").to_lowercase();
                    if let Some(figure) = findings.figure_of(phase, program, setup) {
                        note(run, &key, figure);
                    }
                }
            }
        }
    }
}

fn note(run: &mut Run, key: &str, figure: &Figure) {
    match figure {
        Figure::Throughput(rate) => run.param(&format!("{key}_mbps"), rounded(rate / 1e6)),
        Figure::Pair(first, second) => {
            run.param(&format!("{key}_mbps"), rounded((first + second) / 1e6));
            run.param(&format!("{key}_second_mbps"), rounded(second / 1e6));
        }
        Figure::Took(time) => run.param(&format!("{key}_seconds"), rounded(time.as_secs_f64())),
        Figure::Delays { median, p99 } => {
            let ms = |time: &Duration| rounded(time.as_secs_f64() * 1e3);
            run.param(&format!("{key}_median_ms"), ms(median));
            run.param(&format!("{key}_p99_ms"), ms(p99));
        }
        Figure::GaveUp(_) | Figure::None(_) => {}
    }
}

/// Returns the packets dropped so far because the link's queue was full.
fn queue_drops(world: &World) -> anyhow::Result<u64> {
    let Some(emulator) = world.emulator() else { return Ok(0) };
    let stats = emulator.stats()?;
    Ok(stats.a_to_b.queue_dropped + stats.b_to_a.queue_dropped)
}

/// Delay after a program's end before the counters are read: a gateway decides after a second
/// whether a packet counts as lost, and publishes its counters ten times a second.
const SETTLED: Duration = Duration::from_millis(1400);

/// Returns the counters of both gateways since they started.
fn read_counters(gateways: &Gateways) -> anyhow::Result<Counters> {
    thread::sleep(SETTLED);
    let mut counters = Counters::default();
    for gateway in [&gateways.a, &gateways.b] {
        let peer = gateway.status()?.peer();
        counters.data += peer.sender.bytes;
        counters.repairs += peer.sender.repair_bytes;
        counters.lost += peer.receiver.link.lost;
        counters.recovered += peer.receiver.link.recovered;
    }
    Ok(counters)
}
