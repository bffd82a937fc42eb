//! Config file of a proxy. Its table `[proxy]` has the options of the command line under the same
//! names, and is read into the same struct. The tables `[[policy]]` and `[[tunnel]]` exist only in
//! the file.
//!
//! ```toml
//! [proxy]
//! listen = "[::]:7000"
//! intercept = ["10.2.0.0/16"]
//!
//! [[policy]]
//! to = ["10.2.7.0/24"]
//! ports = ["22", "8000-8080"]
//! handlers = ["shape:rate=2M"]
//! ```

use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use viaduct_proto::flow::Registry;

use super::{OptionsTable, PolicyTable, ProxyArgs, Settings};
use crate::text;
use crate::tunnel::settings::TunnelTable;

/// Maximum size of a config, in bytes.
const MAX_SIZE: u64 = 1 << 20;

/// Contents of a file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    proxy: OptionsTable,
    #[serde(default)]
    policy: Vec<PolicyTable>,
    #[serde(default)]
    tunnel: Vec<TunnelTable>,
}

/// Parsed contents of a file.
struct ParsedConfig {
    args: ProxyArgs,
    policies: Vec<PolicyTable>,
    tunnels: Vec<TunnelTable>,
}

impl Settings {
    /// Settings from the text of a config file, with the handlers of `registry`.
    ///
    /// # Errors
    /// A line with the place, the mistake and a correct form.
    pub fn of_config(text: &str, registry: &Registry) -> Result<Settings> {
        let ParsedConfig { args, policies, tunnels } = parse(text).map_err(|what| anyhow!(what))?;
        Ok(Settings::of(&args, &policies, &tunnels, registry)?.fitted())
    }
}

/// Reads the text of the config file `path`.
///
/// # Errors
/// The file cannot be read, or is too long.
pub fn read(path: &Path) -> Result<String, String> {
    text::read(path, MAX_SIZE)
}

/// Parses `text`.
///
/// # Errors
/// A line with the place, the mistake and a correct form.
fn parse(text: &str) -> Result<ParsedConfig, String> {
    let file: File = toml::from_str(text).map_err(|error| {
        if error.message().contains("missing field `proxy`") {
            return "the table [proxy] is missing".to_owned();
        }
        let at = error.span().map_or(0, |span| span.start);
        text::position(text, at) + &text::explain(text, at, error.message())
    })?;
    let args = file.proxy.options().map_err(|what| format!("[proxy] {what}"))?;
    Ok(ParsedConfig { args, policies: file.policy, tunnels: file.tunnel })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::engine::outbound::OutboundSpec;
    use crate::engine::policy::{Plan, Policy};
    use crate::tunnel::settings::TunnelName;

    fn load(text: &str) -> Result<Vec<Policy>, String> {
        let ParsedConfig { args, policies, tunnels } = parse(text)?;
        let tunnels: Vec<TunnelName> = tunnels.iter().map(|t| t.name[..].into()).collect();
        let by =
            args.next.first().and_then(|next| next.at()).map(OutboundSpec::Hop).unwrap_or_default();
        let otherwise = Plan { by, rate: args.rate, ..Plan::default() };
        let registry = crate::handlers();
        let tables = (1..).zip(&policies);
        tables.map(|(n, table)| table.policy(n, &args, &otherwise, &tunnels, &registry)).collect()
    }

    const HEAD: &str = "[proxy]\nlisten = ['[::]:7000']\nto = '10.0.0.9:80'\n";

    #[test]
    fn options_and_policies_mean_what_they_say() {
        let policies = load(&format!(
            "{HEAD}next = '10.9.0.1:7000'\nrate = '9M'\nflows = 10\n\
             [[policy]]\nports = ['22', '8000-8080']\nhandlers = ['count', '+shape:rate=2M']\n\
             [[policy]]\ndirect = true\nrate = '1k'\n[[policy]]\naction = 'deny'\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        assert_eq!(
            words,
            [
                "from any to any port 22 port 8000-8080: by 10.9.0.1:7000 +count +shape \
                 (2M bit/s), at most 9M bit/s",
                "from any to any: straight on, at most 1k bit/s",
                "from any to any: denied",
            ]
        );
    }

    #[test]
    fn a_table_and_a_command_line_are_the_same_options() {
        let read = |text: &str| parse(&format!("[proxy]\n{text}")).unwrap().args;
        let line = |words: &str| {
            let command = ProxyArgs::augment_args(clap::Command::new("proxy"));
            let words = std::iter::once("proxy").chain(words.split_whitespace());
            ProxyArgs::from_arg_matches(&command.get_matches_from(words)).unwrap()
        };
        for (text, words) in [
            ("", ""),
            (
                "listen = '[::]:7000'\nexpect = ['socks', 'connect']\nports = [80, '8000-8080']\n",
                "--listen [::]:7000 --expect socks,connect --ports 80,8000-8080",
            ),
            (
                "rate = '2M'\nflows = 300\nworkers = '2'\nkeep_client = true\nmax-early = 0\n",
                "--rate 2M --flows 300 --workers 2 --keep-client --max-early 0",
            ),
            (
                "links = 3\ncarrier = 'quic'\ndead-after = '5s'\nrun-dir = '/r'\nspin = '9us'\n",
                "--links 3 --carrier quic --dead-after 5s --run-dir /r --spin 9us",
            ),
            (
                "access-log = 'stderr'\nhandler = ['count', 'shape:in=1M,out=2M']\n",
                "--access-log stderr --handler count --handler shape:in=1M,out=2M",
            ),
        ] {
            assert_eq!(format!("{:?}", read(text)), format!("{:?}", line(words)), "{text}");
        }
    }

    #[test]
    fn a_policy_chooses_a_tunnel_by_its_name() {
        let tunnel = |name: &str| {
            format!("[[tunnel]]\nname = '{name}'\nto = '198.51.100.7:7600'\npeer = 'k'\n")
        };
        let two = tunnel("rome") + &tunnel("oslo");
        let policies = load(&format!(
            "{HEAD}next = '10.9.0.1:7000'\n{two}\
             [[policy]]\nports = ['22']\ntunnel = 'oslo'\n[[policy]]\ndirect = true\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        let oslo = "from any to any port 22: through the tunnel oslo";
        assert_eq!(words, [oslo, "from any to any: straight on"]);
        let wrong = [
            ("tunnel = 'bonn'", "no [[tunnel]] is named \"bonn\"; there are [\"rome\", \"oslo\"]"),
            ("tunnel = true", "[proxy]'s tunnel, which is not given"),
            ("tunnel = 7", "true or the name of a [[tunnel]]"),
            ("tunnel = 'rome'\ndirect = true", "exclude each other"),
        ];
        for (line, expected) in wrong {
            let error = load(&format!("{HEAD}{two}[[policy]]\n{line}\n")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_policy_selects_trickles_for_its_flows() {
        let policies = load(&format!(
            "{HEAD}[[policy]]\nports = ['80']\ntrickles = 'auto'\n[[policy]]\ntrickles = 'udp'\n"
        ))
        .unwrap();
        let words: Vec<_> = policies.iter().map(ToString::to_string).collect();
        let by = ["from any to any port 80: by trickles", "from any to any: by trickles udp"];
        assert_eq!(words, by);
        for (lines, expected) in [
            ("trickles = 'sctp'", "`auto`, `tcp`, `udp`"),
            ("trickles = 'udp'\ndirect = true", "exclude each other"),
            ("trickles = 'udp'\ntrickles-key = 'mine'", "trickles-key: a key is 64"),
            ("trickles-key = 'mine'", "it needs trickles"),
            ("name = '2'", "name: letters, digits, '-', '_' and '.'"),
            ("name = 'a b'", "not \"a b\""),
            ("name = 'otherwise'", "flows that match no policy"),
            ("trickles = 'udp'\nhandlers = ['count']\nside = 'accept'", "next, tunnel or trickles"),
        ] {
            let error = load(&format!("{HEAD}[[policy]]\n{lines}\n")).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn errors_are_one_line() {
        let wrong = [
            ("[proxy]\nlisten = 'x'\n", "[proxy] listen: \"x\": a numeric address"),
            (&format!("{HEAD}links = 'x'\n"), "[proxy] links: \"x\": a number from 1 to 64"),
            (&format!("{HEAD}dead-after = 'x'\n"), "[proxy] dead-after: \"x\": a time of 1s"),
            (&format!("{HEAD}access-log = ''\n"), "[proxy] access-log: a file, - "),
            (&format!("{HEAD}run-dir = 7\n"), "[proxy] run-dir: "),
            (&format!("{HEAD}accept = 'never'\n"), "one of early, after-connect is expected"),
            (&format!("{HEAD}keep-client = 7\n"), "[proxy] keep-client: "),
            (&format!("{HEAD}early_wait = '1s'\nearly-wait = '1s'\n"), "is set twice"),
            ("[proxy]\nlisten = 7\n[polici]\n", "line 3: unknown key `polici`"),
            ("", "the table [proxy] is missing"),
            (&format!("{HEAD}liste = 'x'\n"), "[proxy] unknown key `liste`"),
            (&format!("{HEAD}config = 'x'\n"), "unknown key `config`"),
            (&format!("{HEAD}rate = 'fast'\n"), "bits a second such as 500k"),
            (&format!("{HEAD}[[policy]]\nto = ['host']\n"), "line 5: to: \"host\": a prefix"),
            (&format!("{HEAD}[[policy]]\nnext = 'host:1'\n"), "names of hosts are not looked up"),
            (&format!("{HEAD}[[policy]]\nports = ['9-1']\n"), "a port or a range"),
            (&format!("{HEAD}[[policy]]\nhandlers = ['shap:rate=2M']\n"), "no handler is named"),
            (&format!("{HEAD}[[policy]]\nto = ['10.2.0.0/33']\n"), "line 5: to: "),
            (
                &format!("{HEAD}[[policy]]\nports = '22'\n"),
                "line 5: ports: a list is expected, such as [\"22\", ",
            ),
            (
                &format!("{HEAD}[[policy]]\nhandlers = 'count'\n"),
                "handlers: a list is expected, such as [\"count\", ",
            ),
            (&format!("{HEAD}[[policy]]\nfrom = '::/0'\n"), "such as [\"10.1.0.0/16\"]"),
            (&format!("{HEAD}[policy]\nports = ['22']\n"), "two brackets is expected: [[policy]]"),
        ];
        for (text, expected) in wrong {
            let error = load(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
