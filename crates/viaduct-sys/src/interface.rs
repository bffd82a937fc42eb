//! What the kernel says of a network interface.

use serde::Deserialize;

use crate::tool::{self, ToolError};

#[derive(Deserialize)]
struct Link {
    mtu: usize,
}

/// The MTU of `interface`, in bytes.
///
/// # Errors
/// There is no such interface in the calling thread's namespace, or no `ip` program.
pub fn mtu(interface: &str) -> Result<usize, ToolError> {
    let arguments = ["-json", "link", "show", "dev", interface];
    let said = tool::run("ip", &arguments, "")?;
    let links: Vec<Link> = serde_json::from_str(&said).unwrap_or_default();
    links.first().map(|link| link.mtu).ok_or_else(|| ToolError::Failed {
        command: format!("ip {}", arguments.join(" ")),
        stderr: "it printed no MTU".to_owned(),
    })
}
