//! Values of a first config: as a file, and as the command that sets up the other site.

use toml::Value;
use viaduct_proto::keys::PublicKey;

/// Values of a config with one peer, each in the form of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// Name of this site.
    pub name: String,
    /// Prefixes of this site's hosts.
    pub prefixes: Vec<String>,
    /// Interface towards the peer.
    pub wan: String,
    /// Address at which repairs arrive.
    pub listen: String,
    /// Address at which the peer reaches this site, if the peer can reach it.
    pub endpoint: Option<String>,
    /// Name of the peer.
    pub peer: String,
    /// Prefixes of the peer's hosts.
    pub peer_prefixes: Vec<String>,
    /// Address of the peer's gateway, if known.
    pub peer_endpoint: Option<String>,
    /// Public key of the peer, if known.
    pub peer_key: Option<PublicKey>,
}

impl Draft {
    /// Text of the file, with the key file's name and the peer's key.
    pub fn file(&self, key_file: &str, peer_key: &str) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        let listed = |texts: &[String]| Value::from(texts.to_vec()).to_string();
        let endpoint = self.peer_endpoint.as_deref().map_or(
            "# endpoint = \"HOST:PORT\"      # absent: the peer connects to this site\n".to_owned(),
            |at| format!("endpoint = {}\n", quoted(at)),
        );
        format!(
            "# Site {name}, written by `viaduct setup`. All keys: viaduct's docs/site.toml.md.\n\
             \n\
             [site]\n\
             name = {quoted_name}\n\
             key = {key}\n\
             prefixes = {prefixes}\n\
             wan = {wan}\n\
             listen = {listen}\n\
             \n\
             [[peer]]\n\
             name = {peer}\n\
             key = {peer_key}\n\
             {endpoint}\
             prefixes = {peer_prefixes}\n",
            name = self.name,
            quoted_name = quoted(&self.name),
            key = quoted(key_file),
            prefixes = listed(&self.prefixes),
            wan = quoted(&self.wan),
            listen = quoted(&self.listen),
            peer = quoted(&self.peer),
            peer_key = quoted(peer_key),
            peer_prefixes = listed(&self.peer_prefixes),
        )
    }

    /// Command to be run at the peer's site. If the peer's public key is not known yet, the
    /// command sets up that site. Otherwise it fills this site's public key, `own_key`, into that
    /// site's config.
    pub fn peer_command(&self, own_key: &PublicKey) -> String {
        let (name, peer) = (&self.peer, &self.name);
        let key = own_key.to_string();
        if self.peer_key.is_some() {
            return format!("viaduct setup --name {name} --peer {peer} --peer-key {key}");
        }
        let mut command = format!(
            "viaduct setup --yes --name {name} --prefix {} --peer {peer} --peer-key {key} \
             --peer-prefix {}",
            self.peer_prefixes.join(","),
            self.prefixes.join(",")
        );
        let endpoints = [("--peer-endpoint", &self.endpoint), ("--endpoint", &self.peer_endpoint)];
        for (flag, at) in endpoints {
            // A shell may take brackets for a pattern.
            let quote = if at.as_deref().is_some_and(|at| at.contains('[')) { "'" } else { "" };
            if let Some(at) = at {
                command += &format!(" {flag} {quote}{at}{quote}");
            }
        }
        command
    }
}
