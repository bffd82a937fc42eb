//! Report of what was detected and written, and of the next steps.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;
use viaduct_proto::keys::PublicKey;

use super::DIRECTORY;
use super::draft::Draft;
use super::facts::Facts;
use super::files::Files;

/// Result of `viaduct setup`.
#[derive(Debug)]
pub struct Report<'a> {
    /// Properties of this machine.
    pub facts: &'a Facts,
    /// Values of the config.
    pub draft: Draft,
    /// Command for the other site.
    pub command: String,
    /// Public key of this site.
    pub public_key: PublicKey,
    /// Paths of the files.
    pub files: Files,
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Warnings about the config on this machine.
    pub warnings: Vec<String>,
}

impl Report<'_> {
    /// Human-readable text.
    pub fn text(&self) -> String {
        let Draft { name, wan, listen, peer, .. } = &self.draft;
        let (config, key) = (self.files.config.display(), self.files.key.display());
        let is_new = self.written.contains(&self.files.key);
        let key_state = if is_new { "written, mode 600" } else { "kept" };
        let mut text = format!(
            "site {name}: hosts {}; wan {wan} (MTU {}); repairs arrive at {listen} (UDP, or TCP)\n\
             secret key: {key} ({key_state})\n\
             config:     {config} (written)\n",
            self.draft.prefixes.join(", "),
            self.wan_mtu()
        );
        for warning in &self.warnings {
            text += &format!("warning: {warning}\n");
        }
        let what = match self.draft.peer_key {
            Some(_) => "which then knows this site's key",
            None => "which then prints the command that fills its key in here",
        };
        let next = next(&self.files.config, name).join("\n  ");
        text += &format!("\nAt {peer}, {what}:\n  {}\n\nThen here:\n  {next}\n", self.command);
        text
    }

    /// JSON object with the complete report.
    pub fn json(&self) -> Result<String> {
        let Draft { name, wan, listen, endpoint, prefixes, .. } = &self.draft;
        let addresses: Vec<_> = self.facts.addresses_of(wan).map(|own| own.ip).collect();
        let [v4, v6] = self.facts.forwards;
        let path = |path: &Path| path.display().to_string();
        let object = json!({
            "config": path(&self.files.config),
            "key": path(&self.files.key),
            "public_key": self.public_key.to_string(),
            "written": self.written.iter().map(|file| path(file)).collect::<Vec<_>>(),
            "site": {
                "name": name, "wan": wan, "listen": listen, "endpoint": endpoint,
                "prefixes": prefixes,
            },
            "peer": {
                "name": self.draft.peer,
                "key": self.draft.peer_key.map(|key| key.to_string()),
                "endpoint": self.draft.peer_endpoint,
                "prefixes": self.draft.peer_prefixes,
            },
            "detected": {
                "wan_mtu": self.wan_mtu(),
                "wan_addresses": addresses,
                "prefixes": self.facts.site_prefixes(wan),
                "forwarding": { "ipv4": v4, "ipv6": v6 },
            },
            "warnings": self.warnings,
            "peer_command": self.command,
            "next": next(&self.files.config, name),
        });
        Ok(serde_json::to_string_pretty(&object)? + "\n")
    }

    fn wan_mtu(&self) -> usize {
        self.facts.links.named(&self.draft.wan).map_or(0, |link| link.mtu)
    }
}

/// Commands that check and start the gateway of the site `name`.
pub fn next(config: &Path, name: &str) -> Vec<String> {
    let file = config.display();
    // The units read only configs in this directory.
    let unit = (config.parent() == Some(Path::new(DIRECTORY)))
        .then(|| config.file_stem().unwrap_or_default().to_string_lossy());
    let start = match unit {
        Some(unit) => format!("systemctl enable --now viaduct-gateway@{unit}"),
        None => format!("viaduct gateway -c {file}"),
    };
    let check = format!("viaduct gateway --check -c {file}");
    vec![check, start, format!("viaduct status --name {name}")]
}
