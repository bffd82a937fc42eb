//! Interactive shell inside a world.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use viaduct_proto::link::LinkConfig;
use viaduct_sys::process::Process;

use crate::gateways::GatewaySpec;
use crate::stop;
use crate::topology::{Dumbbell, DumbbellSpec, Host, Journal, Scratch, Wan};
use crate::world::World;

/// Arguments of `viaduct lab shell`.
#[derive(Debug, clap::Args)]
pub struct ShellArgs {
    /// Kind of world
    pub topology: Topology,
    /// Hosts on each side
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub hosts: usize,
    /// MTU between hosts and gateways
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub host_mtu: u32,
    /// MTU between the gateways
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub wan_mtu: u32,
    /// Link between the gateways, as in `rate=200M,delay=50ms,loss=1%`; the default is a plain wire
    #[arg(long, value_name = "LINK")]
    pub link: Option<LinkConfig>,
    /// Start a gateway at each site, with the default code
    #[arg(long)]
    pub gateways: bool,
    /// Split the hosts' TCP connections at the gateways
    #[arg(long, requires = "gateways")]
    pub split: bool,
    /// Congestion control of the hosts' TCP, and of split connections between the gateways
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub congestion_control: String,
    /// Seed of the link's losses
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Show every command that is run
    #[arg(long)]
    pub verbose: bool,
    /// Command to run in a1 instead of your shell
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Worlds that a shell can run in.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Topology {
    /// Two sites with a gateway each
    Dumbbell,
}

/// Builds the world, runs the shell (or the command) in a1, and removes the world afterwards.
/// Returns the exit status of the shell; 128 plus the signal's number if a signal ended it.
pub fn open(args: &ShellArgs) -> anyhow::Result<ExitCode> {
    let Topology::Dumbbell = args.topology;
    let journal = if args.verbose { Journal::aloud() } else { Journal::new() };
    stop::on_signals().context("cannot handle Ctrl-C")?;
    let emulated = |link| Wan::emulated(link, args.seed);
    let spec = DumbbellSpec {
        wan: args.link.clone().map_or(Wan::Veth, emulated),
        hosts: args.hosts,
        host_mtu: args.host_mtu,
        wan_mtu: args.wan_mtu,
        ..DumbbellSpec::default()
    };
    let mut world = World::build(&spec, &journal)?;
    world.dumbbell.set_congestion_control(&args.congestion_control)?;
    if args.gateways {
        let narrower = (args.host_mtu < args.wan_mtu).then_some(args.host_mtu);
        let spec = GatewaySpec { host_mtu: narrower, ..GatewaySpec::default() };
        let split = |spec: GatewaySpec| spec.split().congestion_control(&args.congestion_control);
        world.protect(&if args.split { split(spec) } else { spec })?;
    }
    let helpers = Scratch::new().context("cannot create a directory for the helper commands")?;
    write_helpers(&world.dumbbell, &helpers)?;
    run(args, &mut world, &helpers)
}

fn run(args: &ShellArgs, world: &mut World, helpers: &Scratch) -> anyhow::Result<ExitCode> {
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".into());
    let (program, rest) = match args.command.split_first() {
        Some((program, rest)) => (program.clone(), rest),
        None => (shell, &[][..]),
    };
    if args.command.is_empty() {
        eprint!("{}", banner(args, &world.dumbbell));
    }
    let mut command = world.a1().command(&program);
    command.args(rest).env("PATH", path_with(helpers)).env("debian_chroot", "a1");
    if let Some(gateways) = world.gateways() {
        command.env("VIADUCT_RUN_DIR", gateways.directory());
    }
    for host in world.dumbbell.hosts() {
        command.env(host.name().to_uppercase(), host.v4().to_string());
    }
    let mut child = Process::spawn_foreground(command)
        .with_context(|| format!("cannot start {program:?} in a1"))?;
    let status = loop {
        // The child may handle Ctrl-C itself, so the world is removed only when the child has
        // exited.
        if let Some(status) = child.wait_for(Duration::from_secs(3600), || false)? {
            break status;
        }
    };
    let code = status.code().or(status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Writes the helper commands: a link to this program, and for each machine a script with the
/// machine's name, which runs its arguments (or a shell) there.
fn write_helpers(world: &Dumbbell, helpers: &Scratch) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    std::os::unix::fs::symlink(program, helpers.path().join("viaduct"))?;
    for node in world.nodes() {
        let script = format!(
            "#!/bin/sh\n[ $# -gt 0 ] || set -- \"${{SHELL:-sh}}\"\n\
             exec env debian_chroot={} nsenter --net={} -- \"$@\"\n",
            node.name(),
            node.netns().path()
        );
        helpers
            .write_script(node.name(), script)
            .with_context(|| format!("cannot write the helper command {}", node.name()))?;
    }
    Ok(())
}

fn path_with(helpers: &Scratch) -> String {
    let path = std::env::var("PATH").unwrap_or_else(|_| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    format!("{}:{path}", helpers.path().display())
}

fn banner(args: &ShellArgs, world: &Dumbbell) -> String {
    let list = |hosts: &[Host]| {
        let each = |h: &Host| format!("{} ({})", h.name(), h.v4());
        hosts.iter().map(each).collect::<Vec<_>>().join("  ")
    };
    let gateways = match args.gateways {
        true => "Gateways protect the link: `viaduct status --name site-a` shows the state of A.",
        false => "No gateways run; exit and start again with --gateways to see their effect.",
    };
    format!(
        "\n  {}  --  gwa ==== wan0 ==== gwb  --  {}\n\n\
         You are in a1. A machine's name runs a command in it, or a shell:\n  \
         gwa ip addr        b1 iperf3 -s        ping $B1\n\
         {gateways}\n\
         TCP uses {} (--congestion-control). The world is removed when this shell exits.\n\n",
        list(world.hosts_a()),
        list(world.hosts_b()),
        args.congestion_control
    )
}
