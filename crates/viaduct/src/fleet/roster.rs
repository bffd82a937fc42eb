//! Known members of all sites. A member that etcd no longer lists is kept for [`FORGET_AFTER`].

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time for which etcd must answer without a member before the member is forgotten. This time is
/// longer than a lease, so that each member can register again before it is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(60);

/// Site and name of a member.
pub type MemberId = (String, String);

/// Known members, each with its table in TOML.
#[derive(Debug, Default)]
pub struct Roster {
    members: BTreeMap<MemberId, Known>,
}

#[derive(Debug)]
struct Known {
    table: toml::Table,
    /// Time of the first answer of etcd without the member; `None` if the member was listed last
    /// time, or if etcd did not answer.
    missing_since: Option<Instant>,
}

impl Roster {
    /// Creates a roster of members that an earlier run knew.
    pub fn new(members: impl IntoIterator<Item = (MemberId, toml::Table)>) -> Roster {
        let known = |(id, table)| (id, Known { table, missing_since: None });
        Roster { members: members.into_iter().map(known).collect() }
    }

    /// Updates the roster from an answer that etcd gave at `now`.
    pub fn update(&mut self, now: Instant, listed: BTreeMap<MemberId, toml::Table>) {
        for (id, known) in &mut self.members {
            match listed.contains_key(id) {
                true => known.missing_since = None,
                false => drop(known.missing_since.get_or_insert(now)),
            }
        }
        self.members.retain(|_, known| {
            known.missing_since.is_none_or(|since| now.duration_since(since) < FORGET_AFTER)
        });
        let known = |(id, table)| (id, Known { table, missing_since: None });
        self.members.extend(listed.into_iter().map(known));
    }

    /// Records that etcd has not answered, which restarts the time after which missing members are
    /// forgotten.
    pub fn pause(&mut self) {
        self.members.values_mut().for_each(|known| known.missing_since = None);
    }

    /// Table of a member; `None` if the member is unknown.
    pub fn get(&self, id: &MemberId) -> Option<&toml::Table> {
        self.members.get(id).map(|known| &known.table)
    }

    /// Members of a site, by name.
    pub fn of_site(&self, site: &str) -> impl Iterator<Item = (&str, &toml::Table)> {
        let of_site = self.members.iter().filter(move |((of, _), _)| of == site);
        of_site.map(|((_, name), known)| (&name[..], &known.table))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(name: &str) -> MemberId {
        ("oslo".to_owned(), name.to_owned())
    }

    fn listed(names: &[&str]) -> BTreeMap<MemberId, toml::Table> {
        names.iter().map(|name| (id(name), toml::Table::new())).collect()
    }

    fn names(roster: &Roster) -> Vec<&str> {
        roster.of_site("oslo").map(|(name, _)| name).collect()
    }

    #[test]
    fn a_member_is_forgotten_only_if_etcd_answers_without_it_for_a_minute() {
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut roster = Roster::new([(id("o1"), toml::Table::new())]);
        roster.update(at(0), listed(&["o2"]));
        assert_eq!(names(&roster), ["o1", "o2"]);
        // etcd is down for ten minutes, comes back empty, and is filled again.
        roster.pause();
        roster.update(at(600), listed(&[]));
        roster.update(at(630), listed(&["o2"]));
        assert_eq!(names(&roster), ["o1", "o2"]);
        roster.update(at(659), listed(&["o2"]));
        assert_eq!(names(&roster), ["o1", "o2"]);
        roster.update(at(660), listed(&["o2"]));
        assert_eq!(names(&roster), ["o2"]);
        assert_eq!(roster.of_site("lima").count(), 0);
    }
}
