//! `viaduct fleet` with a real etcd.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use viaduct_proto::keys::SecretKey;
use viaduct_sys::process::Process;

use super::common::etcd::Etcd;
use super::common::{until, within};

/// Box of site `s1` or `s2`, which runs `viaduct fleet`. Its process ends when the box is dropped.
struct Member {
    dir: PathBuf,
    process: Option<Process>,
}

impl Member {
    /// Starts the process of a box with this key.
    fn start(dir: &Path, sites: (u8, u8), key: u8, etcd: &Etcd) -> Member {
        let mut member = Member::prepare(dir, sites, key);
        member.restart(key, etcd);
        member
    }

    /// Writes the base and the key of a box.
    fn prepare(dir: &Path, (site, peer): (u8, u8), key: u8) -> Member {
        let dir = dir.join(format!("m{key}"));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("site.key");
        fs::write(&file, SecretKey::from_bytes([key; 32]).to_text()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let base = format!(
            "[site]\nname = \"s{site}\"\nkey = \"site.key\"\nprefixes = [\"10.{site}.0.0/16\"]\n\
             wan = \"wan0\"\nlisten = \"0.0.0.0:7400\"\nrun_dir = \"{}\"\n\
             [[peer]]\nname = \"s{peer}\"\nprefixes = [\"10.{peer}.0.0/16\"]\n",
            dir.display()
        );
        fs::write(dir.join("base.toml"), base).unwrap();
        Member { dir, process: None }
    }

    fn command(&self, etcd: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viaduct"));
        command.arg("fleet").arg("--base").arg(self.dir.join("base.toml"));
        command.arg("--out").arg(self.out());
        command.args(["--etcd", &format!("etcd://127.0.0.1:{etcd}/viaduct")]);
        command
    }

    fn restart(&mut self, key: u8, etcd: &Etcd) {
        let mut command = self.command(etcd.port);
        command.args(["--member", &format!("m{key}")]);
        command.args(["--endpoint", &format!("192.0.2.{key}:7400"), "--weight", "2"]);
        let log = fs::File::create(self.dir.join("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        self.process = Some(Process::spawn(command).unwrap());
    }

    fn out(&self) -> PathBuf {
        self.dir.join("site.toml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.out()).unwrap_or_default()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap()
    }
}

#[test]
fn boxes_find_each_other_by_etcd_and_keep_their_configs_if_it_is_gone_or_empty() {
    let dir = std::env::temp_dir().join(format!("viaduct-fleet-{}", std::process::id()));
    fs::create_dir_all(&dir).unwrap();
    let mut etcd = Etcd::start(&dir);
    let start = |sites, key| Member::start(&dir, sites, key, &etcd);
    let mut members = [start((1, 2), 11), start((1, 2), 12), start((2, 1), 21)];
    until("all members are in all configs", || {
        members.iter().all(|member| {
            let text = member.text();
            ["m11", "m12", "m21"].iter().all(|name| text.contains(&format!("name = \"{name}\"")))
        })
    });
    let text = members[0].text();
    assert!(
        text.contains("endpoint = \"192.0.2.21:7400\"") && text.contains("weight = 2"),
        "{text}"
    );
    assert!(!text.contains("192.0.2.12"), "members of one site need no endpoints: {text}");
    let key = SecretKey::from_bytes([12; 32]).public().to_string();
    assert!(text.contains(&key), "{text}");
    until("a reload is tried", || members[0].log().contains("cannot make the gateway reload"));

    // A gateway that starts later gets SIGHUP once. The signal ends the process that takes the
    // gateway's place here, whose status is not read.
    let listen = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); \
                  s.bind(sys.argv[1]); s.listen(); time.sleep(60)";
    let mut gateway = Command::new("python3");
    gateway.args(["-c", listen]).arg(members[0].dir.join("s1.sock"));
    let mut gateway = Process::spawn(gateway).unwrap();
    assert_eq!(gateway.wait().unwrap().signal(), Some(1));
    until("the reload is logged", || members[0].log().contains("the gateway reloads"));

    // Deleted entries are registered again.
    etcd.delete_all("viaduct/");
    let has_all = || etcd.count("viaduct/") == 3;
    assert!(!has_all());
    until("all boxes are registered again", has_all);

    let before = members.each_ref().map(Member::text);
    let log = members[0].dir.join("log");
    let returns = || fs::read_to_string(&log).unwrap().matches("is followed again").count();
    let returned = returns();
    etcd.stop();
    let stands = || members.iter().all(|member| member.log().contains("the last file stands"));
    assert!(within(Duration::from_secs(20), stands), "{}", members[0].log());
    members[1].process = None;
    members[2].process = None;
    // etcd starts again without its data, while one box is still down.
    fs::remove_dir_all(&etcd.dir).unwrap();
    etcd.restart();
    members[2].restart(21, &etcd);
    let is_back = || returns() > returned;
    assert!(within(Duration::from_secs(20), is_back), "{}", members[0].log());
    thread::sleep(Duration::from_secs(3));
    assert_eq!(members.each_ref().map(Member::text), before);
    drop(members);
    fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_box_whose_options_would_make_configs_invalid_is_not_registered() {
    let dir = std::env::temp_dir().join(format!("viaduct-fleet-wrong-{}", std::process::id()));
    let member = Member::prepare(&dir, (1, 2), 11);
    for (name, slices, expected) in [
        ("o 1", "10.1.0.0/18", "letters, digits"),
        ("o1", "10.1.0.1/18", "has bits beyond its length"),
        ("o1", "10.3.0.0/18", "is not part of a prefix"),
    ] {
        let log = fs::File::create(member.dir.join("log")).unwrap();
        // The box asks no etcd before it has checked its options.
        let mut command = member.command(1);
        command.args(["--member", name, "--slices", slices, "--endpoint", "192.0.2.1:7400"]);
        command.stdout(Stdio::null()).stderr(log);
        let mut process = Process::spawn(command).unwrap();
        let ended = process.wait_for(Duration::from_secs(20), || false).unwrap();
        assert!(ended.is_some_and(|status| !status.success()), "{}", member.log());
        assert!(member.log().contains(expected), "{}", member.log());
    }
    fs::remove_dir_all(&dir).unwrap();
}
