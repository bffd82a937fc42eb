//! FIGURES.md: the template with a table of rows in each section, and the links of the rows.

use anyhow::{Context, Result, bail, ensure};

use super::rows::{Row, State, System};

const HEAD: &str = "| source | claim | command | bound | last value | state |\n\
                    |---|---|---|---|---|---|\n";

const MAX_CELL: usize = 100;

/// Renders the sheet: in `template`, a line `{{table NAME...}}` stands for the rows of the named
/// systems, and `{{links}}` for the definitions of the links in the rows' first cells. Fails if a
/// cell is too long, or a system is not in the template.
pub(super) fn render(template: &str, systems: &[System]) -> Result<String> {
    let mut out = String::new();
    let mut shown: Vec<&System> = Vec::new();
    for line in template.lines() {
        let Some(directive) = line.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}"))
        else {
            out += line;
            out.push('\n');
            continue;
        };
        if directive == "links" {
            out += &links(&shown);
        } else if let Some(names) = directive.strip_prefix("table ") {
            let chosen = find(names, systems)?;
            out += &table(&chosen)?;
            shown.extend(chosen);
        } else {
            bail!("the template has {line:?}, neither \"{{{{table NAME...}}}}\" nor links");
        }
    }
    for system in systems {
        let known = shown.iter().any(|shown| shown.name == system.name);
        ensure!(known, "the template has no table for {}", system.name);
    }
    Ok(out)
}

fn find<'a>(names: &str, systems: &'a [System]) -> Result<Vec<&'a System>> {
    let system_of = |name: &str| {
        let found = systems.iter().find(|system| system.name == name);
        found.with_context(|| format!("the template has a table for {name}, which has no rows"))
    };
    names.split_whitespace().map(system_of).collect()
}

fn table(systems: &[&System]) -> Result<String> {
    let mut out = HEAD.to_owned();
    for row in systems.iter().flat_map(|system| &system.rows) {
        out += &line(row)?;
    }
    Ok(out)
}

fn line(row: &Row) -> Result<String> {
    let (command, state) = (row.command(), state(row));
    for cell in [&row.seed, &row.claim, &command, &row.bound, &row.last, &state] {
        let length = cell.chars().count();
        let fits = length <= MAX_CELL && !cell.contains(['|', '\n']);
        ensure!(
            fits,
            "{}: a cell has at most {MAX_CELL} characters and no \"|\", this one has {length}: \
             {cell}; use a short claim, and put the name into `checks`",
            row.name()
        );
    }
    let last =
        if row.state == State::Short { format!("**{}**", row.last) } else { row.last.clone() };
    Ok(format!(
        "| [{}][{}] | {} | `{command}` | {} | {last} | {state} |\n",
        row.seed, row.experiment, row.claim, row.bound
    ))
}

/// Formats state, flags, date and commit.
fn state(row: &Row) -> String {
    let state = match row.state {
        State::Met => "met",
        State::Short => "**short**",
        State::Pending => "pending",
        State::Shown => "shown",
    };
    let mut out = state.to_owned();
    for flag in &row.flags {
        out += ", ";
        out += flag;
    }
    let Some(date) = &row.date else { return out };
    out += "; ";
    out += date;
    if let Some(commit) = &row.commit {
        out += if row.noted { " noted " } else { " " };
        out += commit;
    }
    out
}

/// Returns the definition of each link: an experiment's section in docs/measurements.
fn links(systems: &[&System]) -> String {
    let mut out = String::new();
    let mut known: Vec<&str> = Vec::new();
    for system in systems {
        for row in &system.rows {
            let name = row.experiment.as_str();
            if known.contains(&name) {
                continue;
            }
            known.push(name);
            let page = format!("docs/measurements/{}.md", system.name);
            out += &format!("[{name}]: {page}#{}\n", anchor(name));
        }
    }
    out
}

/// Returns the anchor that Markdown gives a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}
