//! Which flows the chain applies to, as said on the command line and in files.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use viaduct_proto::wrap::{Fate, Rules};

/// What may be said of flows.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct RuleArgs {
    /// Have the handlers apply to these alone: tcp:443, 10.0.0.0/8, 192.0.2.1:8000-8999 [repeatable]
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,
    /// Leave these alone, as if nobody were there [repeatable]
    #[arg(long, value_name = "PATTERN")]
    except: Vec<String>,
    /// Read such rules from a file: a line each, only PATTERN, except PATTERN or refuse PATTERN
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Refuse what no handler can be applied to: datagrams, raw sockets
    #[arg(long)]
    strict: bool,
}

impl RuleArgs {
    /// What they mean.
    ///
    /// # Errors
    /// What is wrong, where it stands, and what would be right.
    pub fn load(&self) -> Result<Rules> {
        let mut rules = Rules::EVERYTHING;
        rules.strict = self.strict;
        let said = [("--only", Fate::Divert, &self.only), ("--except", Fate::Leave, &self.except)];
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
