use proptest::prelude::*;

use super::*;

fn member(key: u8, weight: u8, slices: &[&str]) -> Member {
    let slices = slices.iter().map(|slice| slice.parse().unwrap()).collect();
    Member { key: PublicKey::from_bytes([key; 32]), weight, slices }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Slices of a few prefixes, enough for statistics.
fn many() -> Vec<IpNet> {
    let prefixes: Vec<_> = (0..64).map(|n| net(&format!("10.{n}.0.0/16"))).collect();
    slices(&prefixes, &[])
}

fn owners(members: &[Member], is_alive: impl Fn(usize) -> bool) -> Vec<usize> {
    many().iter().map(|slice| owner(&ranking(slice, members), &is_alive).unwrap()).collect()
}

#[test]
fn a_prefix_has_sixteen_slices_and_those_that_members_list() {
    let all = slices(&[net("10.2.0.0/16"), net("fd00:2::/48")], &[]);
    assert_eq!(all.len(), 32);
    assert_eq!((all[0], all[15]), (net("10.2.0.0/20"), net("10.2.240.0/20")));
    assert_eq!(all[31], net("fd00:2:0:f000::/52"));
    let one = member(1, 1, &["10.2.0.0/17", "10.2.3.0/24", "10.9.0.0/24"]);
    let all = slices(&[net("10.2.0.0/16")], &[one]);
    assert_eq!(all.len(), 17, "only a prefix longer than the parts adds a slice");
    assert!(all.contains(&net("10.2.3.0/24")));
    assert_eq!(slices(&[net("192.0.2.1/32"), net("192.0.2.8/30")], &[]).len(), 5);
}

/// Rankings must be the same at all gateways, of all versions.
#[test]
fn rankings_are_those_of_other_versions() {
    let members = [member(1, 1, &[]), member(2, 1, &[]), member(3, 1, &[])];
    let rankings: Vec<_> = slices(&[net("10.2.0.0/18")], &[])
        .iter()
        .take(6)
        .map(|slice| ranking(slice, &members))
        .collect();
    let v6 = ranking(&net("fd00:2:0:3000::/52"), &members);
    assert_eq!((rankings, v6), golden());
}

fn golden() -> (Vec<Vec<usize>>, Vec<usize>) {
    let rankings = [[0, 1, 2], [0, 2, 1], [0, 2, 1], [2, 1, 0], [0, 2, 1], [2, 0, 1]];
    (rankings.map(Vec::from).to_vec(), vec![0, 2, 1])
}

#[test]
fn slices_are_in_proportion_to_weights() {
    let members = [member(1, 1, &[]), member(2, 2, &[]), member(3, 5, &[])];
    let owners = owners(&members, |_| true);
    for (at, expected) in [1.0, 2.0, 5.0].into_iter().enumerate() {
        let share =
            owners.iter().filter(|owner| **owner == at).count() as f64 / owners.len() as f64;
        assert!((share - expected / 8.0).abs() < 0.04, "member {at}: {share}");
    }
}

#[test]
fn a_listed_slice_belongs_to_its_member_unless_dead_or_drained() {
    let slice = net("10.2.16.0/20");
    let mut members =
        [member(1, 1, &["10.2.0.0/16"]), member(2, 1, &["10.2.0.0/17"]), member(3, 9, &[])];
    assert_eq!(ranking(&slice, &members), [1, 0, 2]);
    assert_eq!(owner(&[1, 0, 2], |at| at != 1), Some(0));
    members[1].weight = 0;
    assert_eq!(ranking(&slice, &members), [0, 2, 1]);
    assert_eq!(owner(&[0, 2, 1], |_| false), Some(0), "the first member if none is alive");
    assert_eq!(owner(&[], |_| true), None);
}

fn rack() -> impl Strategy<Value = Vec<Member>> {
    let keys = prop::collection::hash_set(1..=255_u8, 1..6);
    let with_weights = keys.prop_flat_map(|keys| {
        let count = keys.len();
        (Just(keys), prop::collection::vec(0..6_u8, count))
    });
    with_weights.prop_map(|(keys, weights)| {
        keys.into_iter().zip(weights).map(|(key, weight)| member(key, weight, &[])).collect()
    })
}

proptest! {
    #[test]
    fn only_the_slices_of_a_dead_member_move(members in rack(), dead: prop::sample::Index) {
        let dead = dead.index(members.len());
        let before = owners(&members, |_| true);
        let after = owners(&members, |at| at != dead);
        for (before, after) in before.iter().zip(&after) {
            prop_assert!(members.len() == 1 || *after != dead);
            prop_assert!(before == after || *before == dead);
        }
    }

    #[test]
    fn a_higher_weight_only_attracts_slices(members in rack(), more: prop::sample::Index) {
        let more = more.index(members.len());
        let mut heavier = members.clone();
        heavier[more].weight += 1;
        let (before, after) = (owners(&members, |_| true), owners(&heavier, |_| true));
        let mut pairs = before.iter().zip(&after);
        prop_assert!(pairs.all(|(before, after)| before == after || *after == more));
    }

    #[test]
    fn the_order_in_the_config_does_not_matter(members in rack()) {
        let mut reversed = members.clone();
        reversed.reverse();
        let keys = |members: &[Member]| -> Vec<_> {
            owners(members, |_| true).into_iter().map(|at| members[at].key).collect()
        };
        prop_assert_eq!(keys(&members), keys(&reversed));
    }
}
