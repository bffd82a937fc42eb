mod members;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Directory for a config and its key, removed when dropped.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("viaduct-config-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let key = path.join("site.key");
        fs::write(&key, SecretKey::from_bytes([7; 32]).to_text()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        Dir(path)
    }

    fn load(&self, text: &str) -> Result<Config, ConfigError> {
        let path = self.0.join("site.toml");
        fs::write(&path, text).unwrap();
        Config::load(&path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Valid config.
fn good() -> String {
    let key = SecretKey::from_bytes([8; 32]).public();
    format!(
        "[site]\n\
         name = \"a\"\n\
         key = \"site.key\"\n\
         prefixes = [\"10.1.0.0/16\"]\n\
         wan = \"wan0\"\n\
         listen = \"192.0.2.1:7400\"\n\
         [[peer]]\n\
         name = \"b\"\n\
         key = \"{key}\"\n\
         endpoint = \"192.0.2.2:7400\"\n\
         prefixes = [\"10.2.0.0/16\"]\n"
    )
}

impl Config {
    /// Config for other tests: `good()` with the name `no-gateway`, the secret key of 32 bytes of
    /// value 7, the address `listen`, and `lines` at the end of `[site]`.
    pub(in crate::gateway) fn of_test(listen: &str, lines: &str) -> Config {
        let text = good()
            .replace("name = \"a\"", "name = \"no-gateway\"")
            .replace("192.0.2.1:7400", listen)
            .replace("[[peer]]", &format!("{lines}[[peer]]"));
        let secret = SecretKey::from_bytes([7; 32]);
        Config::parse(Path::new("site.toml"), &text, Some(&secret)).unwrap()
    }
}

/// Error for `good()` with `from` replaced by `to`, without the directory's name.
fn error(from: &str, to: &str) -> String {
    let dir = Dir::new();
    let text = good();
    assert!(text.contains(from), "{from:?} is not in the config");
    let error = dir.load(&text.replacen(from, to, 1)).unwrap_err().to_string();
    assert!(!error.contains('\n'), "one line: {error}");
    error.replace(&format!("{}/", dir.0.display()), "")
}

/// Checks that `to` in place of `from` is rejected with a one-line error that contains all `parts`.
fn refused(from: &str, to: &str, parts: &[&str]) {
    let error = error(from, to);
    for part in ["site.toml: "].iter().chain(parts) {
        assert!(error.contains(part), "{part:?} is expected in: {error}");
    }
}

#[test]
fn a_valid_config_is_accepted_without_a_warning() {
    let config = Dir::new().load(&good()).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!((config.memory, config.peers.len()), (48 << 20, 1));
    assert!(
        matches!(&config.peers[0].coding, Some(Coding::Auto(of)) if of.limits.max_overhead == 0.3)
    );
    assert_eq!(config.peers[0].rekey_after, Duration::from_secs(120));
}

#[test]
fn unknown_keys_and_tables_are_refused_with_their_line() {
    refused("wan =", "wann =", &["line 5: ", "`wann`", "expected one of", "`wan`"]);
    refused("endpoint =", "adress =", &["line 10: ", "`adress`", "`endpoint`"]);
    refused("[[peer]]", "[sight]\n[[peer]]", &["line 7: ", "`sight`", "`site`"]);
    refused("[[peer]]", "[metrics]\nport = 1\n[[peer]]", &["line 8: ", "`port`", "`listen`"]);
}

#[test]
fn values_of_another_kind_are_refused_with_line_and_key() {
    refused(
        "[\"10.1.0.0/16\"]",
        "[\"10.1.0.0/99\"]",
        &["line 4: prefixes: \"10.1.0.0/99\" is not a prefix; write it like"],
    );
    refused(
        "\"192.0.2.1:7400\"",
        "\"192.0.2.1\"",
        &["line 6: listen: \"192.0.2.1\" is not a numeric address"],
    );
    refused("\"wan0\"", "7", &["line 5: wan: 7: the name of an interface"]);
    refused("[[peer]]", "memory = \"9x\"\n[[peer]]", &["line 7: memory: \"9x\": bytes are"]);
    refused("[[peer]]", "memory = true\n[[peer]]", &["line 7: memory: text or a number"]);
    refused("[[peer]]", "memory = 9\n[[peer]]", &["line 7: memory: ", "4M at least"]);
    refused("[\"10.1.0.0/16\"]", "\"10.1.0.0/16\"", &["line 4: prefixes: a list is expected"]);
    refused("[[peer]]", "[peer]", &["line 7: a table with two brackets is expected: [[peer]]"]);
    refused("site.key", &"ab".repeat(32), &["is a key; the name of the file"]);
    let table = |line: &str| format!("{}[peer.fec]\n{line}\n", good());
    let fails = |line: &str| Dir::new().load(&table(line)).unwrap_err().to_string();
    assert!(fails("flush_after = \"8\"").contains("line 13: flush_after: \"8\" is not a time"));
    assert!(fails("flush_after = \"25h\"").contains("\"25h\" is not a time up to a day"));
    assert!(fails("interleave = \"x\"").contains("line 13: interleave: 1 to 65535, or a list"));
    assert!(fails("r = 300").contains("line 13: r: is 300; a whole number from 1 to 255"));
    assert!(fails("c = \"2\"").contains("line 13: c: is \"2\"; a whole number from 1 to 255"));
    assert!(Dir::new().load("[site\n").unwrap_err().to_string().contains("line 1: "));
}

#[test]
fn classes_determine_the_protection_of_packets() {
    let with = |lines: &str| Dir::new().load(&format!("{}{lines}", good()));
    let config = with(
        "[peer.fec]\nmax_rate = '8M'\nacks = true\n[[peer.class]]\nname = 'voice'\n\
         dscp = ['ef', 44, 'af41']\nprotocols = ['udp', 50]\nports = [5060, '10000-20000']\n\
         prefixes = ['10.2.3.0/24']\nrepairs = 'copies'\n[[peer.class]]\nname = 'backup'\n\
         ports = [873]\nrepairs = 'window'\ndeadline = '200ms'\nmax_overhead = 0.05\n",
    )
    .unwrap();
    let Some(Coding::Auto(of)) = &config.peers[0].coding else { panic!("auto") };
    assert_eq!((of.limits.max_rate, of.acks), (Some(1e6), true));
    let [voice, backup] = &of.classes[..] else { panic!("two: {:?}", of.classes) };
    assert_eq!(
        (&voice.matches.dscp[..], &voice.matches.protocols[..]),
        (&[46, 44, 34][..], &[17, 50][..])
    );
    assert_eq!(voice.matches.ports, [5_060..=5_060, 10_000..=20_000]);
    assert_eq!(backup.deadline, Some(Duration::from_millis(200)));
    let fails = |lines: &str| {
        let lines = format!("[[peer.class]]\nname = 'x'\n{lines}\n");
        with(&lines).unwrap_err().to_string()
    };
    let repairs = "repairs = 'window'\n";
    for (line, part) in [
        ("dscp = ['af9']", "\"af9\" is not a code point; write it like 46"),
        ("dscp = [64]", "64 is not a code point"),
        ("ports = ['9-1']", "a port or a range such as 8000-8080"),
        ("protocols = ['tpc']", "\"tpc\" is not a protocol"),
        ("deadline = '1ms'", "class \"x\": deadline: is below 5ms"),
    ] {
        let error = fails(&format!("{repairs}{line}"));
        assert!(error.contains(part), "{part:?} is expected in: {error}");
    }
    let error = fails("repairs = 'copies'\nmax_overhead = 0.1");
    assert!(error.contains("only for repairs = \"window\""), "{error}");
    let twice = with(&"[[peer.class]]\nname = 'x'\nrepairs = 'none'\n".repeat(2)).unwrap_err();
    assert!(twice.to_string().contains("is used by another class too"), "{twice}");
    let fixed = with("[peer.fec]\ncode = 'window'\n[[peer.class]]\nname = 'x'\nrepairs = 'none'\n");
    assert!(fixed.unwrap_err().to_string().contains("only for code \"auto\""));
}

#[test]
fn missing_parts_are_named() {
    refused("name = \"a\"\n", "", &["line 1: [site]: `name` is missing"]);
    let without_peer = good().split("[[peer]]").next().unwrap().to_owned();
    let error = Dir::new().load(&without_peer).unwrap_err().to_string();
    assert!(error.contains("no [[peer]]; at least one"), "{error}");
    let error = Config::load(Path::new("/nonexistent/site.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/site.toml: cannot be read"), "{error}");
}

#[test]
fn the_site_is_checked() {
    refused("name = \"a\"", "name = \"a/b\"", &["[site] name: \"a/b\"", "letters"]);
    refused("[\"10.1.0.0/16\"]", "[]", &["[site] prefixes: ", "list the addresses"]);
    refused("\"wan0\"", "\"an-interface-of-16\"", &["[site] wan: ", "1 to 15"]);
    refused("2.1:7400", "2.1:0", &["[site] listen: ", "port 0"]);
    refused(
        "[[peer]]",
        "host_mtu = 100\n[[peer]]",
        &["line 7: host_mtu: is 100; a whole number from 576 to 9000"],
    );
    refused("[[peer]]", "memory = \"1MiB\"\n[[peer]]", &["line 7: memory: ", "4M at least"]);
    refused(
        "192.0.2.1:7400",
        "255.255.255.255:7400",
        &["[site] listen: ", "not the address of one machine"],
    );
    refused("[[peer]]", "run_dir = \"/dev/null\"\n[[peer]]", &["run_dir: /dev/null is not a dir"]);
    // `/a.upgrade.new` is the longest name of a socket.
    let long = |length: usize| format!("run_dir = \"/{}\"\n[[peer]]", "x".repeat(length - 1));
    refused("[[peer]]", &long(94), &["[site] run_dir: ", "at most 107 are possible"]);
    assert!(Dir::new().load(&good().replace("[[peer]]", &long(93))).is_ok());
    refused("site.key", "/dev/zero", &["[site] key: /dev/zero: ", "not a regular file"]);
    refused("site.key", "no.key", &["[site] key: no.key: ", "viaduct key new --out no.key"]);
    refused("site.key", "site.toml", &["[site] key: site.toml: a key is 64 hexadecimal digits"]);
}

#[test]
fn peers_are_checked() {
    let own = SecretKey::from_bytes([7; 32]).public().to_string();
    let key = SecretKey::from_bytes([8; 32]).public().to_string();
    refused(&key, "abc", &["peer \"b\": key: a key is 64 hexadecimal digits"]);
    refused(&key, &own, &["peer \"b\": key: is this site's own"]);
    refused(&key, &"0".repeat(64), &["peer \"b\": key: is not a key that `viaduct key new`"]);
    refused("\"b\"", "\"\"", &["[[peer]] name: "]);
    refused("\"b\"", "\"a\"", &["peer \"a\": name: is this site's own"]);
    let endpoint = |to: &str, part: &str| refused("192.0.2.2:7400", to, &["endpoint: is ", part]);
    endpoint("192.0.2.1:7400", "own [site] listen");
    endpoint("224.0.0.1:7400", "of one machine");
    endpoint("[2001:db8::2]:7400", "IPv6 but [site] listen is IPv4");
    refused("[\"10.2.0.0/16\"]", "[]", &["peer \"b\": prefixes: ", "list the addresses"]);
    refused(
        "192.0.2.2:7400",
        "0.0.0.0:7400",
        &["peer \"b\": endpoint: is 0.0.0.0:7400; the address"],
    );
    refused(
        "endpoint =",
        "rekey_after = \"1s\"\nendpoint =",
        &["peer \"b\": rekey_after: ", "10s"],
    );
    let other = SecretKey::from_bytes([9; 32]).public().to_string();
    let second = |name: &str, key: &str| {
        let more =
            format!("[[peer]]\nname = \"{name}\"\nkey = \"{key}\"\nprefixes = [\"10.3.0.0/16\"]\n");
        Dir::new().load(&(good() + &more)).map(drop).map_err(|e| e.to_string())
    };
    assert!(second("b", &other).unwrap_err().contains("peer \"b\": name: is used by another peer"));
    assert!(second("c", &key).unwrap_err().contains("peer \"c\": key: is that of peer \"b\" too"));
    assert_eq!(second("c", &other), Ok(()));
}

#[test]
fn prefixes_have_no_host_bits_and_belong_to_one_site() {
    refused("10.2.0.0/16", "10.2.3.0/16", &["peer \"b\": prefixes: ", "10.2.0.0/16 is expected"]);
    refused("10.2.0.0/16", "10.1.2.0/24", &["10.1.2.0/24 overlaps 10.1.0.0/16 of [site]"]);
}

#[test]
fn codes_are_checked() {
    let fails = |fec: &str| {
        let text = format!("{}[peer.fec]\n{}\n", good(), fec.replace("; ", "\n"));
        Dir::new().load(&text).unwrap_err().to_string()
    };
    assert!(fails("r = 0").contains("line 13: r: is 0; a whole number from 1 to 255"));
    assert!(fails("code = \"window\"; window = 0").contains("line 14: window: is 0; a whole"));
    assert!(fails("max_overhead = 1.5").contains("max_overhead: is 1.5; a share above 0"));
    for (fec, part) in [
        (
            "code = \"turbo\"",
            "code \"turbo\" is unknown; one of auto, observe, layered, reed-solomon, window, none",
        ),
        ("code = \"layered\"; c = 2", "interleave is missing"),
        (
            "code = \"layered\"; c = 2; interleave = [1, 2, 3]",
            "c is 2 but interleave lists 3 numbers",
        ),
        ("code = \"layered\"; interleave = [0]; c = 1", "interleaves go from 1 to 65535"),
        ("code = \"reed-solomon\"; interleave = [1]", "reed-solomon has one number"),
        ("code = \"reed-solomon\"; r = 250; c = 20", "above 256"),
        ("code = \"none\"; r = 8", "r has no meaning for code \"none\""),
        ("window = 8", "window has no meaning for code \"auto\"; it belongs to window"),
        (
            "code = \"window\"; max_overhead = 0.2",
            "max_overhead has no meaning for code \"window\"",
        ),
    ] {
        let error = fails(fec);
        assert!(error.contains("peer \"b\": fec: ") && error.contains(part), "{fec}: {error}");
    }
}

#[test]
fn unusual_settings_are_warned_about() {
    let dir = Dir::new();
    fs::set_permissions(dir.0.join("site.key"), fs::Permissions::from_mode(0o644)).unwrap();
    let text = good()
        + "[peer.fec]\ncode = \"layered\"\ninterleave = [1, 20, 40]\n\
           [metrics]\nlisten = \"0.0.0.0:9747\"\n[cache]\nlisten = \"192.0.2.1:7401\"\n";
    let warnings = dir.load(&text).unwrap().warnings;
    for part in
        ["mode 644", "[metrics] listen: 0.0.0.0:9747", "[cache] listen: 192.0.2.1", "20 and 40"]
    {
        let count = warnings.iter().filter(|w| w.contains(part)).count();
        assert_eq!(count, 1, "{part:?} once in {warnings:#?}");
    }
}

/// Content of a file of the repository.
fn repository(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join(path)).unwrap()
}

#[test]
fn the_examples_load() {
    let dir = Dir::new();
    let whole = dir.load(&repository("examples/site.toml")).unwrap();
    assert_eq!(whole.warnings, Vec::<String>::new());
    assert!(whole.metrics.is_some() && whole.cache.is_some());
    let two = dir.load(&repository("examples/two-peers.toml")).unwrap();
    assert_eq!(two.peers.len(), 2);
}

/// Each table's name, and a config in which that table has the key `stranger`.
fn tables() -> [(&'static str, String); 6] {
    [
        ("[site]", good().replace("[[peer]]", "stranger = 1\n[[peer]]")),
        ("[[site.member]]", good() + "[[site.member]]\nstranger = 1\n"),
        ("[metrics]", good() + "[metrics]\nstranger = 1\n"),
        ("[cache]", good() + "[cache]\nstranger = 1\n"),
        ("[[peer]]", good() + "stranger = 1\n"),
        ("[peer.fec]", good() + "[peer.fec]\nstranger = 1\n"),
    ]
}

#[test]
fn every_key_is_documented_and_shown_in_the_example() {
    let (doc, example) = (repository("docs/site.toml.md"), repository("examples/site.toml"));
    for (table, text) in tables() {
        // The error about the unknown key lists the known ones.
        let error = Dir::new().load(&text).unwrap_err().to_string();
        let (_, expected) = error.split_once("expected").unwrap();
        let keys: Vec<_> = expected.split('`').skip(1).step_by(2).collect();
        assert!(!keys.is_empty(), "{error}");
        let heading = format!("## `{table}`");
        let (_, rest) = doc.split_once(&heading).unwrap_or_else(|| panic!("{heading} in the doc"));
        let section = rest.split("\n## ").next().unwrap();
        for key in keys {
            assert!(
                section.contains(&format!("| `{key}` |")),
                "{key} of {table} in docs/site.toml.md"
            );
            let set = [format!("{key} = "), format!(".{key}]")];
            let shown = set.iter().any(|set| example.contains(set));
            assert!(shown, "{key} of {table} in examples/site.toml");
        }
    }
}

#[test]
fn lanes_are_a_power_of_two_and_enough_for_the_workers() {
    let load =
        |lines: &str| Dir::new().load(&good().replace("[[peer]]", &format!("{lines}[[peer]]")));
    let lanes = |lines: &str| {
        let config = load(lines).unwrap();
        (config.workers, config.lanes.get())
    };
    assert_eq!(lanes(""), (1, 1));
    assert_eq!(lanes("workers = 2\n"), (2, 16));
    assert_eq!(lanes("workers = 20\n"), (20, 32));
    assert_eq!(lanes("workers = 3\nlanes = 4\n"), (3, 4));
    assert_eq!(lanes("lanes = 64\n"), (1, 64));
    assert!(lanes("workers = \"auto\"\n").0 >= 1);
    let refused = |lines: &str, part: &str| {
        let error = load(lines).unwrap_err().to_string();
        assert!(error.contains(part), "{part:?} is expected in: {error}");
    };
    refused("workers = 0\n", "a whole number from 1 to 64, or \"auto\", is expected");
    refused("workers = \"many\"\n", "from 1 to 64");
    refused("lanes = 12\n", "a power of two from 1 to 64 is expected");
    refused("workers = 8\nlanes = 4\n", "[site] lanes: is 4; each of 8 workers needs one");
    let fake_tcp = good().replace("[[peer]]", "workers = 2\n[[peer]]\ntransport = \"fake-tcp\"");
    let error = Dir::new().load(&fake_tcp).unwrap_err().to_string();
    assert!(error.contains("[site] workers = 1"), "{error}");
}
