//! Experiments that load the machine or measure its speed. They run one at a time.

use std::sync::PoisonError;

use viaduct_lab::experiment::{Outcome, print_table};

use super::{MACHINE, assert_at_most, assert_holds, conduct};

fn quick(name: &str) -> Outcome {
    alone(name, true)
}

fn alone(name: &str, quick: bool) -> Outcome {
    let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    conduct(name, quick)
}

#[test]
fn gateways_keep_a_flow_from_collapsing() {
    let outcome = quick("maelstrom/throughput-loss");
    // The other checks compare flows that are measured one after the other; other load on the
    // processors may change in between.
    assert_holds(&outcome, 3, 1, |name| name == "at 1 %: protected, relative to plain");
}

#[test]
fn real_gateways_recover_bursts_as_the_simulated_ones_do() {
    let outcome = quick("maelstrom/burst");
    assert!(!outcome.checks.is_empty());
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn hops_save_as_much_time_as_in_the_paper_on_path_and_by_the_option() {
    let outcome = quick("miniproxy/ttc");
    // Times of complete downloads depend more on other load.
    assert_holds(&outcome, 12, 6, |name| name.contains("time to first byte"));
}

/// Returns the value of the bar with this name.
fn bar(outcome: &Outcome, plot: &str, name: &str) -> f64 {
    let found = outcome.series.iter().filter(|s| s.plot == plot).flat_map(|s| &s.points);
    found.filter(|point| point.label.as_deref() == Some(name)).map(|point| point.y).next().unwrap()
}

#[test]
fn a_relay_needs_no_more_cpu_time_than_a_proxy_that_splices() {
    let outcome = quick("miniproxy/throughput");
    let cost = |load: &str, who| bar(&outcome, &format!("Cost, {load}"), who);
    for flows in ["1 flow", "8 flows"] {
        assert!(cost(flows, "viaduct") < 0.7 * cost(flows, "nginx stream"), "{outcome:#?}");
    }
    // Rates depend on the load of the processors.
    assert_holds(&outcome, 5, 2, |name| name.ends_with("CPU-s per GB, relative to HAProxy"));
}

#[test]
fn idle_relays_hold_no_pipes_and_little_memory() {
    let outcome = quick("miniproxy/connections");
    // Times to the first byte depend on the load of the processors.
    assert_holds(&outcome, 5, 3, |name| !name.contains("time to the first byte"));
}

#[test]
fn upgrades_of_a_proxy_break_no_flow_and_leave_nothing() {
    let outcome = quick("miniproxy/upgrade");
    // Pauses and rates depend on the load of the processors.
    let counts = ["flows reset", "flows with wrong", "old processes", "growth of"];
    assert_holds(&outcome, 8, 5, |name| counts.iter().any(|count| name.starts_with(count)));
    assert_at_most(&outcome, "p99", 500.0);
}

#[test]
fn upgrades_of_a_gateway_break_no_flow_and_leave_packets_protected() {
    let outcome = quick("maelstrom/upgrade");
    // The longest of 20 pauses depends on the load of the processors.
    assert_holds(&outcome, 6, 5, |name| !name.contains("p99"));
    assert_at_most(&outcome, "p99", 500.0);
}

#[test]
#[ignore = "slow (six deaths of a path, a minute): run by `make matrix`"]
fn a_path_that_dies_is_left_within_a_second() {
    let outcome = quick("scale/paths");
    // Latencies of single messages depend on the load of the processors.
    assert_holds(&outcome, 6, 3, |name| name.contains("seconds until"));
}

#[test]
fn first_answers_of_trickles_are_no_longer_than_their_requests() {
    let outcome = quick("trickles/object-size");
    // Round trips of a single fetch depend on the load of the processors.
    assert_holds(&outcome, 4, 1, |name| name.starts_with("bytes of the first"));
}

/// Asserts that every program that could be run behaves as over a direct connection; prints the
/// differences.
fn assert_alike(outcome: &Outcome) {
    let otherwise = outcome.params.iter().filter(|(name, _)| name.starts_with("otherwise"));
    for (name, what) in otherwise {
        eprintln!("{name}: {}", what.as_str().unwrap_or_default());
    }
    assert!(outcome.holds(), "{}", print_table(outcome, false));
}

#[test]
fn real_programs_behave_as_without_viaduct() {
    let outcome = quick("tesla/matrix");
    assert_eq!(outcome.checks.len(), 3, "{outcome:#?}");
    assert_alike(&outcome);
}

#[test]
#[ignore = "slow (transports of gateways, a minute): run by `make matrix`"]
fn fake_tcp_passes_a_strict_middlebox_and_forged_segments_end_no_session() {
    let outcome = quick("maelstrom/fake-tcp");
    // Goodput and processor time are noisy: each is measured with one short flow.
    let is_noisy =
        |name: &str| name.contains("relative to UDP") || name.starts_with("goodput during");
    assert_holds(&outcome, 11, 7, |name| !is_noisy(name));
}

#[test]
#[ignore = "slow (200 downloads, four times, over a minute): run by `make matrix`"]
fn downloads_survive_dead_machines_and_new_secrets() {
    let outcome = quick("scale/replicas");
    // The longest gap of 200 downloads depends on the load of the processors.
    assert_holds(&outcome, 8, 5, |name| !name.contains("longest gap"));
}

#[test]
#[ignore = "slow (about twenty programs in nine ways): run by `make matrix`"]
fn all_real_programs_behave_as_without_viaduct() {
    let outcome = alone("tesla/matrix", false);
    assert_eq!(outcome.checks.len(), 22, "{outcome:#?}");
    assert_alike(&outcome);
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn offloaded_programs_are_woken_no_more_often_than_plain_ones() {
    let outcome = quick("tesla/latency");
    // Wake-ups are counts; rates depend on the machine.
    assert_holds(&outcome, 10, 2, |name| name.contains("wake-ups"));
    let outcome = quick("tesla/bandwidth");
    let blocks = outcome.checks.iter().filter(|check| !check.value.is_nan()).count();
    assert!(blocks == outcome.checks.len() && blocks > 10, "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn rates_and_delays_are_as_configured_under_every_interposer() {
    let outcome = quick("tesla/shape");
    assert_holds(&outcome, 15, 12, |name| !name.contains("delay"));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn a_transfer_outlives_a_change_of_address_and_an_outage() {
    let outcome = quick("tesla/migrate");
    assert_eq!(outcome.checks.len(), 3);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn two_links_carry_more_than_one_and_text_shrinks() {
    let outcome = quick("tesla/handlers");
    assert_eq!(outcome.checks.len(), 3);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn connecting_costs_little_more_and_flows_leave_no_state() {
    let outcome = quick("tesla/cost");
    assert_eq!(outcome.checks.len(), 12);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn an_open_flow_avoids_a_failed_path_and_returns_to_it() {
    let outcome = quick("tesla/route");
    assert_eq!(outcome.checks.len(), 5);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "slow (experiments on `viaduct run`): run by `make matrix`"]
fn four_flows_that_share_an_estimate_get_equal_shares() {
    let outcome = quick("tesla/congestion");
    // The share of the bottleneck is not checked in CI; see FIGURES.md.
    assert_holds(&outcome, 5, 4, |name| !name.starts_with("congestion: the four flows'"));
}
