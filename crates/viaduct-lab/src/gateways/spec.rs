//! Configuration of a pair of gateways, as a `site.toml` each.

use std::path::{Path, PathBuf};

use viaduct_proto::keys::SecretKey;

/// Letters of the sites.
pub(super) const LETTERS: [char; 2] = ['a', 'b'];

/// Configuration of a pair of gateways.
#[derive(Clone, Debug, Default)]
pub struct GatewaySpec {
    /// Lines of the `[peer.fec]` table, such as `r = 8`.
    pub fec: String,
    /// MTU of the hosts, if below the WAN's.
    pub host_mtu: Option<u32>,
    /// Further lines of the `[site]` table.
    pub site: String,
    /// Further lines of the `[[peer]]` table, such as `mode = "split"`.
    pub peer: String,
    /// Further tables of the file; `{own}` becomes the site's number, 1 or 2.
    pub tables: String,
    /// Tables of further peers of gateway A.
    pub others: String,
    /// Two WANs, `first` on `wan0` and `second` on `wan1`; see
    /// [`Dumbbell::add_wan`](crate::topology::Dumbbell::add_wan).
    pub two_wans: bool,
    /// Directory of the status sockets; `None` for the directory of the other files.
    pub run_dir: Option<PathBuf>,
}

impl GatewaySpec {
    /// Sets the lines of `[peer.fec]`.
    pub fn fec(lines: &str) -> Self {
        GatewaySpec { fec: lines.to_owned(), ..Self::default() }
    }

    /// Configures layers (r, c = I.len()) with interleaves I, in the paper's notation.
    pub fn layered(r: u8, interleaves: &[u16], delay_xors: bool) -> Self {
        Self::fec(&format!(
            "code = \"layered\"\nr = {r}\ninterleave = {interleaves:?}\ndelay_xors = {delay_xors}\n"
        ))
    }

    /// Splits TCP connections at both gateways; replaces the lines of [`GatewaySpec::peer`].
    pub fn split(self) -> Self {
        GatewaySpec { peer: "mode = \"split\"\n".to_owned(), ..self }
    }

    /// Sets the congestion control between the gateways of split connections; replaces
    /// [`GatewaySpec::tables`].
    pub fn congestion_control(self, name: &str) -> Self {
        let tables = format!("[split]\ncongestion_control = \"{name}\"\n");
        GatewaySpec { tables, ..self }
    }

    /// Configures the hosts' MTU.
    pub fn host_mtu(self, mtu: u32) -> Self {
        GatewaySpec { host_mtu: Some(mtu), ..self }
    }

    /// Returns the config of gateway `n`, 0 or 1.
    pub(super) fn site_toml(
        &self,
        run_dir: &Path,
        n: usize,
        (listen, endpoint): (&str, Option<&str>),
        their: &SecretKey,
    ) -> String {
        let (own, other) = (n + 1, 2 - n);
        let [wan, wans, endpoint] = match self.two_wans {
            true => two_wans(own, other),
            false => [
                format!("wan = \"wan0\"\nlisten = \"{listen}\"\n"),
                String::new(),
                endpoint.map_or(String::new(), |at| format!("endpoint = \"{at}\"\n")),
            ],
        };
        let host_mtu = self.host_mtu.map_or(String::new(), |mtu| format!("host_mtu = {mtu}\n"));
        format!(
            r#"[site]
name = "site-{letter}"
key = "{letter}.key"
prefixes = ["10.{own}.0.0/16", "fd00:{own}::/48"]
{wan}run_dir = "{run_dir}"
{host_mtu}{site}
{wans}{tables}
[[peer]]
name = "site-{other_letter}"
key = "{their_key}"
prefixes = ["10.{other}.0.0/16", "fd00:{other}::/48"]
{endpoint}{peer}
[peer.fec]
{fec}
{others}
"#,
            letter = LETTERS[n],
            other_letter = LETTERS[1 - n],
            run_dir = run_dir.display(),
            site = self.site,
            tables = self.tables.replace("{own}", &own.to_string()),
            their_key = their.public(),
            peer = self.peer,
            fec = self.fec,
            others = if n == 0 { &self.others } else { "" },
        )
    }
}

/// Returns the lines of a site with two WANs: keys of `[site]`, further tables, and keys
/// of `[[peer]]`.
fn two_wans(own: usize, other: usize) -> [String; 3] {
    let wan = |name: &str, n: usize, v4: &str, v6: &str| {
        format!(
            "[[site.wan]]\nname = \"{name}\"\ninterface = \"wan{n}\"\n\
             listen = \"{v4}.{own}:7400\"\nvia = [\"{v4}.{other}\", \"{v6}::{other}\"]\n"
        )
    };
    let first = wan("first", 0, "192.0.2", "2001:db8");
    let second = wan("second", 1, "198.51.100", "2001:db8:1");
    let endpoints = format!("[\"192.0.2.{other}:7400\", \"198.51.100.{other}:7400\"]");
    [String::new(), first + &second, format!("endpoints = {endpoints}\n")]
}
