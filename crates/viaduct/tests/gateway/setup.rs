//! Two sites that are set up by `viaduct setup`, each by the command that the other one printed.
//!
//! ```text
//!   rome: setup ─ prints ─▶ oslo: setup ─ prints ─▶ rome: the missing key is filled in
//!         /etc, /run of its own             /etc, /run of its own
//! ```

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use viaduct_lab::topology::{Journal, Node, Scratch};
use viaduct_sys::process::Process;

use super::common::until;
use super::{World, lost_pings, world};

/// Shell code that runs its arguments with other directories in place of `/etc` and `/run`.
const OWN_FILES: &str = "mount --bind $0/etc /etc && mount --bind $0/run /run && exec \"$@\"";

/// Gateway's machine, with files of its own.
struct Site<'a> {
    name: &'static str,
    node: &'a Node,
    files: Scratch,
}

impl<'a> Site<'a> {
    fn new(name: &'static str, node: &'a Node) -> Site<'a> {
        let files = Scratch::new().unwrap();
        for directory in ["etc", "run"] {
            fs::create_dir(files.path().join(directory)).unwrap();
        }
        Site { name, node, files }
    }

    /// Command that runs a line of the shell, in which `viaduct` is the tested program.
    fn command(&self, line: &str) -> Command {
        let mut command = self.node.command("unshare");
        let program = Path::new(env!("CARGO_BIN_EXE_viaduct")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", program.display()));
        command.args(["--mount", "sh", "-c", OWN_FILES]).arg(self.files.path());
        command.args(["sh", "-c", line]);
        command
    }

    /// Runs a line, and returns its standard output, or its standard error if it fails.
    fn run(&self, line: &str) -> Result<String, String> {
        let output = self.command(line).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Runs `viaduct setup ... --json`.
    fn setup(&self, line: &str) -> Value {
        let said = self.run(&format!("{line} --json")).unwrap();
        serde_json::from_str(&said).unwrap()
    }

    /// Command line of `viaduct gateway` with the site's config.
    fn gateway(&self, options: &str) -> String {
        format!("viaduct gateway {options} -c /etc/viaduct/{}.toml", self.name)
    }

    fn start(&self) -> Process {
        self.node.spawn(self.command(&format!("exec {}", self.gateway("")))).unwrap()
    }

    /// Status of the gateway; null if it does not answer.
    fn status(&self) -> Value {
        let status = self.run(&format!("viaduct status --name {} --json", self.name));
        serde_json::from_str(&status.unwrap_or_default()).unwrap_or_default()
    }
}

fn mode(file: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).unwrap().permissions().mode() & 0o777
}

/// Lets the two sites set each other up, with Oslo at `oslo_address`, and checks that they then
/// protect their packets.
fn two_sites(world: &World, oslo_address: &str) {
    let rome = Site::new("rome", world.dumbbell.gateway_a());
    let oslo = Site::new("oslo", world.dumbbell.gateway_b());
    let first = format!(
        "viaduct setup --yes --name rome --peer oslo --peer-prefix 10.2.0.0/16,fd00:2::/48 \
         --peer-endpoint {oslo_address}"
    );
    let at_rome = rome.setup(&first);
    let detected = at_rome["site"].to_string();
    assert!(detected.contains("\"wan0\"") && detected.contains("10.1.1.0/24"), "{detected}");
    assert!(detected.contains("fd00:1:0:1::/64"), "{detected}");
    assert_eq!(at_rome["detected"]["wan_mtu"], 1500);
    assert_eq!(at_rome["warnings"], Value::Array(Vec::new()));
    let etc = |site: &Site<'_>, name: &str| site.files.path().join("etc/viaduct").join(name);
    assert_eq!((mode(&etc(&rome, "rome.key")), mode(&etc(&rome, "rome.toml"))), (0o600, 0o644));
    // The config is not valid before the key is there, and is not overwritten.
    let error = rome.run(&rome.gateway("--check")).unwrap_err();
    assert!(error.contains("peer \"oslo\": key: is missing; `viaduct setup`"), "{error}");
    assert!(rome.run(&first).unwrap_err().contains("already exists; not overwritten"));
    let at_oslo = oslo.setup(at_rome["peer_command"].as_str().unwrap());
    let fill_in = at_oslo["peer_command"].as_str().unwrap();
    assert_eq!(rome.setup(fill_in)["changed"], true);
    assert_eq!(rome.setup(fill_in)["changed"], false);
    let sites = [&rome, &oslo];
    for site in sites {
        let said = site.run(&site.gateway("--check")).unwrap();
        assert!(said.ends_with("\nok\n"), "{said}");
    }
    let _gateways = sites.map(Site::start);
    until("both sessions", || sites.iter().all(|site| site.status()["peers"][0]["state"] == "up"));
    let lost = lost_pings(world, false, 100);
    assert!(lost <= 6, "{lost} of 300 pings are lost although the gateways are up");
    until("a recovery", || {
        let recovered = &oslo.status()["counters"]["peers"][0][1]["receiver"]["recovered"];
        recovered.as_u64().is_some_and(|packets| packets > 0)
    });
}

#[test]
fn two_sites_set_each_other_up_by_the_commands_they_print() {
    for oslo_address in ["192.0.2.2", "'[2001:db8::2]:7500'"] {
        let world = world((1500, 1500), "rate=100M,delay=5ms,loss=3%");
        two_sites(&world, oslo_address);
    }
}

#[test]
fn a_refused_setup_leaves_no_file() {
    let node = Node::new("gwa", &Journal::new()).unwrap();
    node.ip(&["link add eth0 type veth peer name far0".into()]).unwrap();
    let site = Site::new("rome", &node);
    let refused = |line: &str, why: &str| {
        let error = site.run(line).unwrap_err();
        assert!(error.contains(why), "{line}: {error}");
        assert!(!site.files.path().join("etc/viaduct").exists(), "{line}");
    };
    let given = "viaduct setup --name rome --peer oslo --peer-prefix 10.2.0.0/16 --wan eth0";
    refused(given, "standard input is not a terminal; with --yes, options without a flag");
    refused(&format!("{given} --yes"), "--listen ADDRESS:PORT is missing: eth0 has no address");
    // The gateway's config parser rejects conflicts between values that are valid by themselves.
    let overlap = format!("{given} --yes --listen 192.0.2.1 --prefix 10.0.0.0/8");
    refused(&overlap, "overlaps 10.0.0.0/8");
    let whole = format!("{given} --yes --listen 192.0.2.1 --prefix 10.1.0.0/16");
    let said = site.run(&whole).unwrap();
    assert!(said.contains("warning: ") && said.contains("\nAt oslo, which then prints"), "{said}");
    let key = fs::read(site.files.path().join("etc/viaduct/rome.key")).unwrap();
    site.run(&format!("{whole} --force")).unwrap();
    assert_eq!(fs::read(site.files.path().join("etc/viaduct/rome.key")).unwrap(), key);
}
