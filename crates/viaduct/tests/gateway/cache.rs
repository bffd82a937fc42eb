//! The packet cache with a real NAK-based receiver: packets that the receiver itself dropped are
//! sent again within a LAN round trip instead of a WAN round trip.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use viaduct_lab::binary::use_binary;
use viaduct_lab::gateways::GatewaySpec;
use viaduct_lab::topology::{Host, Journal};
use viaduct_lab::world::World;

use super::common::until;

/// Delay of the link in each direction, in milliseconds.
const DELAY: f64 = 50.0;

#[test]
fn a_receiver_gets_its_own_drops_from_the_gateway() {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let example = example();
    let link = "rate=100M,delay=50ms".parse().unwrap();
    let mut world = World::new((1200, 1500), &link, 1, &Journal::new()).unwrap();
    let spec = GatewaySpec {
        tables: "[cache]\nlisten = \"10.{own}.1.1:7401\"\n".into(),
        ..Default::default()
    };
    world.protect(&spec.host_mtu(1200)).unwrap();
    let without = recovered(&world, &example, &[]);
    assert!(without.from_sender > 50 && without.from_cache == 0, "{without:?}");
    assert!(without.median_ms >= 2.0 * DELAY, "{without:?}");
    let with = recovered(&world, &example, &["--cache", "10.2.1.1:7401"]);
    assert!(with.from_cache > 50 && with.from_sender == 0, "{with:?}");
    assert!(with.median_ms < DELAY, "{with:?}");
}

#[derive(Debug, Default)]
struct Recovered {
    from_cache: usize,
    from_sender: usize,
    median_ms: f64,
}

fn recovered(world: &World, example: &Path, more: &[&str]) -> Recovered {
    let mut receiver = command(world.b1(), example);
    receiver.args(["receive", "7000"]).args(more).stdout(Stdio::piped());
    let receiver = receiver.spawn().unwrap();
    let bound = || world.b1().run("ss", &["-Hlun", "sport = :7000"]).unwrap();
    until("the receiver is up", || bound().contains(":7000"));
    let sender = command(world.a1(), example).args(["send", "10.2.1.2:7000"]).output().unwrap();
    assert!(sender.status.success());
    let output = receiver.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "not all packets arrived: {said}");
    let mut found = Recovered::default();
    let mut times = Vec::new();
    for line in said.lines().filter(|line| line.starts_with("packet ")) {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[2] {
            "cache" => found.from_cache += 1,
            _ => found.from_sender += 1,
        }
        times.push(words[3].parse::<f64>().unwrap());
    }
    times.sort_by(f64::total_cmp);
    found.median_ms = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    found
}

fn command(host: &Host, program: &Path) -> Command {
    host.command(&program.to_string_lossy())
}

/// Builds the example as a user would, and returns its path.
fn example() -> PathBuf {
    let viaduct = Path::new(env!("CARGO_BIN_EXE_viaduct"));
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut build = Command::new(cargo);
    build.args(["build", "--quiet", "--locked", "--profile", "checked", "-p", "nak-receiver"]);
    build.arg("--target-dir").arg(viaduct.ancestors().nth(2).unwrap());
    assert!(build.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    viaduct.ancestors().nth(2).unwrap().join("checked/nak-receiver")
}
