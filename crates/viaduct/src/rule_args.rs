//! Rules that select the flows to which the chain applies, from the command line and from files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use viaduct_proto::wrap::{Fate, Rules};

/// Options that select flows.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RuleArgs {
    /// Apply the handlers only to flows that match PATTERN, such as tcp:443, 10.0.0.0/8 or
    /// 192.0.2.1:8000-8999 [repeatable]
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Let flows that match PATTERN connect directly, as without viaduct [repeatable]
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Refuse flows that match PATTERN [repeatable]
    #[arg(long, value_name = "PATTERN")]
    refuse: Vec<String>,
    /// Read rules from a file, one per line: only PATTERN, except PATTERN or refuse PATTERN
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Refuse traffic that the handlers cannot process, such as datagrams and raw sockets (default
    /// if a handler hides or protects data)
    #[arg(long, conflicts_with = "no_strict")]
    strict: bool,
    /// Let traffic that the handlers cannot process go direct, even if a handler hides or protects
    /// data
    #[arg(long)]
    no_strict: bool,
}

impl RuleArgs {
    /// Returns the rules that the options define for a chain. `guards` is true if a handler of the
    /// chain hides or protects data. Errors: the file cannot be read, or a rule is malformed; the
    /// error then names the option, or the file and line, and the expected form.
    pub fn load(&self, guards: bool) -> Result<Rules> {
        let mut rules = Rules::EVERYTHING;
        rules.strict = self.strict || guards && !self.no_strict;
        let said = [
            ("--only", Fate::Divert, &self.only),
            ("--except", Fate::Leave, &self.except),
            ("--refuse", Fate::Refuse, &self.refuse),
        ];
        for (option, fate, patterns) in said {
            for pattern in patterns {
                rules.add(fate, pattern).with_context(|| format!("{option} {pattern}"))?;
            }
        }
        if let Some(path) = &self.rules {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            rules
                .read(&text)
                .map_err(|(line, error)| anyhow!("{}, line {line}: {error}", path.display()))?;
        }
        Ok(rules)
    }
}
