//! Experiments that mostly wait for long round trips. Each needs about an eighth of two processors,
//! so they run in parallel.

use std::sync::PoisonError;

use viaduct_lab::experiment::{Outcome, print_table};

use super::{MACHINE, assert_holds, conduct};

fn quick(name: &str) -> Outcome {
    let _with_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    conduct(name, true)
}

#[test]
fn a_trip_through_an_off_path_proxy_takes_the_time_of_the_papers_model() {
    let outcome = quick("miniproxy/off-path");
    assert_holds(&outcome, 13, 12, |name| name.ends_with("relative to the model"));
}

#[test]
fn a_tunnel_makes_squids_faster_and_a_silent_link_delays_only_its_sessions() {
    let outcome = quick("lfn/mux");
    // A tunnel has no advantage over persistent connections of Squid, so on a busy machine either
    // may be faster. The slowest 1 % of a quick run is two documents.
    let judged = |name: &str| !name.contains("persistent") && !name.contains("slowest 1 %");
    assert_holds(&outcome, 27, 18, judged);
}

#[test]
fn a_tunnel_saves_small_documents_a_round_trip_and_isolates_its_sessions() {
    let outcome = quick("lfn/delay");
    assert_holds(&outcome, 11, 11, |_| true);
}

#[test]
fn an_idle_proxy_is_small() {
    let outcome = quick("miniproxy/start");
    // How many pages of the program are resident depends on the kernel's page cache.
    assert_holds(&outcome, 6, 2, |name| {
        name.contains("private memory") || name.contains("hops on demand: mem")
    });
}

#[test]
fn chosen_hops_are_near_the_best_and_share_the_load() {
    let outcome = quick("scale/hops");
    // The times of real programs depend on the load of the processors.
    let is_real = |name: &str| name.starts_with("in namespaces");
    assert_holds(&outcome, 7, 5, |name| !is_real(name) || name.ends_with("failed"));
}

#[test]
fn gateways_keep_messages_from_waiting_for_lost_ones() {
    let outcome = quick("maelstrom/latency-loss");
    // The 99th percentile through gateways depends on the load of the processors.
    assert_holds(&outcome, 3, 2, |name| !name.starts_with("protected p99"));
}

#[test]
fn tcp_of_1999_stalls_where_todays_does_not() {
    let outcome = quick("lfn/traces");
    assert_eq!(outcome.checks.len(), 6);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn an_emulated_link_keeps_to_its_settings() {
    let outcome = quick("lab/link");
    let counts = ["loss, ", "reordering", "duplication", "corruption", "rate "];
    let counted = |name: &str| counts.iter().any(|count| name.starts_with(count));
    let checks: Vec<_> = outcome.checks.iter().filter(|c| counted(&c.name)).collect();
    assert_eq!(checks.len(), 13);
    for check in checks {
        assert!(check.holds, "{check:?}");
    }
}

#[test]
fn a_syn_flood_costs_the_servers_little_and_delays_real_clients_little() {
    let outcome = quick("miniproxy/flood");
    // The speed of flood and clients depends on the machine, and a busy machine loses a SYN or two.
    let other = ["SYNs a second", "served, %"];
    let counted = |name: &str| !name.ends_with(", ms") && !other.iter().any(|o| name.ends_with(o));
    assert_holds(&outcome, 12, 4, counted);
}

#[test]
fn attacks_on_a_stateless_server_are_refused_and_counted() {
    let outcome = quick("trickles/attacks");
    // Within three seconds the rate of a cheating client relative to an honest one is noisy. The
    // check of the client that hides losses is robust, because that client gets only half of an
    // honest client's rate.
    let cheats = "client that ";
    let judged = |name: &str| !name.starts_with(cheats) || name.contains("that hides losses:");
    assert_holds(&outcome, 25, 20, judged);
}
