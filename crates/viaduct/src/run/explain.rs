//! Descriptions of the handlers: `viaduct run --list`, and `--help HANDLER`.

use anyhow::{Result, bail};
use viaduct_proto::flow::{About, Registry};

use super::transport;
use crate::stdout::print_line;

/// Prints a line for each handler.
pub fn list(registry: &Registry) -> Result<()> {
    for About { name, line, guards, both_ends, datagrams, .. } in registry.about() {
        let notes = [(both_ends, "at both ends"), (guards, "strict"), (datagrams, "datagrams")];
        let notes: Vec<_> = notes.iter().filter(|(is, _)| **is).map(|(_, note)| *note).collect();
        let notes =
            if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join(", ")) };
        print_line!("+{name:<10} {line}{notes}")?;
    }
    let About { name, line, .. } = transport::about();
    print_line!("+{name:<10} {line} [last in the chain]")
}

/// Prints a handler with its settings. Errors: no handler has this name.
pub fn one(registry: &Registry, name: &str) -> Result<()> {
    let bare = name.trim_start_matches('+');
    let transport = transport::about();
    let mut all = registry.about().chain([&transport]);
    let Some(about) = all.find(|about| about.name == bare) else {
        let known = registry.names().chain([transport.name]).collect::<Vec<_>>().join(", ");
        bail!("no handler is named {bare:?}; there are {known}");
    };
    print_line!("+{}: {}", about.name, about.line)?;
    for (is, text) in [
        (
            about.name == transport.name,
            "The transport at the end of the chain, not a handler: it must be last.",
        ),
        (about.both_ends, "Both ends of a flow need this handler."),
        (about.datagrams, "It also works on datagrams."),
        (
            about.guards,
            "Traffic that cannot pass this handler is refused, unless --no-strict is given.",
        ),
    ] {
        if is {
            print_line!("\n{text}")?;
        }
    }
    if !about.settings.is_empty() {
        let name = &about.name;
        print_line!("\nSettings, as in +{name}:KEY=VALUE,... or +{name} -KEY=VALUE ...")?;
    }
    for setting in &about.settings {
        let left = format!("{}={}", setting.key, setting.value);
        print_line!("  {left:<24} {}", setting.help)?;
    }
    Ok(())
}
