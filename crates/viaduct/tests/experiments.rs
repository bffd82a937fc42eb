//! Experiments in their quick form, with real gateways. A busy machine with two cores must pass:
//! what is asserted are counts and ratios of things measured in one run, with room; the bounds of
//! the figures themselves are checked by `viaduct lab run`.
#![allow(clippy::unwrap_used)] // a test may panic

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use viaduct_lab::binary::use_binary;
use viaduct_lab::experiment::{Ended, Options, Outcome, perform, print_table};
use viaduct_lab::experiments::select;

/// They measure time: one at a time, but for those that do little else than wait for long round trips.
/// (Tests begin by the order of their names: those of the second kind stand together.)
static MACHINE: RwLock<()> = RwLock::new(());

fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

fn beside_others() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

fn quick(name: &str) -> Outcome {
    conduct(name, true)
}

fn conduct(name: &str, quick: bool) -> Outcome {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let chosen = select(&[name.to_owned()]).unwrap();
    let outcome = perform(chosen[0], &Options { quick, quiet: quick, ..Options::default() });
    assert_eq!(outcome.ended, Ended::Complete, "{name}");
    outcome
}

/// The last point of the series of this plot whose name begins so.
fn last(outcome: &Outcome, plot: &str, series: &str) -> f64 {
    let found = outcome.series.iter().find(|s| s.plot == plot && s.name.starts_with(series));
    found.unwrap().points.last().unwrap().y
}

#[test]
fn the_link_loses_repeats_and_overtakes_as_it_is_told() {
    let _alone = alone();
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
fn gateways_keep_messages_from_waiting_for_what_was_lost() {
    let _alone = alone();
    let outcome = quick("maelstrom/latency-loss");
    let p99 = |who| last(&outcome, "99th percentile of it", who);
    assert!(p99("plain") > 150.0, "{outcome:#?}");
    assert!(p99("with gateways") < 0.8 * p99("plain"), "{outcome:#?}");
    let beside = |who| last(&outcome, "The flow beside", who);
    assert!(beside("with gateways") > 3.0 * beside("plain"), "{outcome:#?}");
}

#[test]
fn gateways_keep_a_flow_from_collapsing() {
    let _alone = alone();
    let outcome = quick("maelstrom/throughput-loss");
    let rate = |who| last(&outcome, "Throughput of one flow", who);
    assert!(rate("with gateways") > 10.0 * rate("plain"), "{outcome:#?}");
}

#[test]
fn real_gateways_recover_bursts_as_the_simulated_ones_do() {
    let _alone = alone();
    let outcome = quick("maelstrom/burst");
    assert!(!outcome.checks.is_empty());
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn a_flood_of_syns_costs_the_servers_little_and_true_clients_next_to_nothing() {
    let _alone = alone();
    let outcome = quick("miniproxy/flood");
    let checks: Vec<_> = outcome.checks.iter().collect();
    assert_eq!(checks.len(), 12);
    // How fast the flood and the clients are is the machine's affair; one that is busy loses a SYN or two.
    let counted = |name: &str| !name.ends_with(", ms") && !name.contains("a second");
    for check in checks.iter().filter(|check| counted(&check.name)) {
        let served = check.name.ends_with("served, %") && check.value >= 95.0;
        assert!(check.holds || served, "{}", print_table(&outcome, false));
    }
}

#[test]
fn an_idle_proxy_is_small() {
    let _alone = alone();
    let outcome = quick("miniproxy/start");
    let memory = outcome.checks.iter().find(|check| check.name.contains("memory")).unwrap();
    assert!(memory.holds, "{}", print_table(&outcome, false));
    // Whatever else the machine does: a start is no matter of seconds.
    for check in outcome.checks.iter().filter(|check| check.name.ends_with(", ms")) {
        assert!(check.value < 500.0, "{}", print_table(&outcome, false));
    }
}

#[test]
fn hops_save_what_the_paper_says_on_the_path_and_told_by_the_option() {
    let _alone = alone();
    let outcome = quick("miniproxy/ttc");
    let first_byte = |who: &str| last(&outcome, "Time to first byte", who);
    for (hops, share) in [("1 proxy", 0.25), ("2 proxies", 0.333), ("3 proxies", 0.375)] {
        for name in [hops.to_owned(), format!("{hops}, explicit")] {
            let saved = 1.0 - first_byte(&name) / first_byte("no proxy");
            assert!(saved > share - 0.05, "{name}: {saved}");
        }
    }
}

/// The bar of this name.
fn bar(outcome: &Outcome, plot: &str, name: &str) -> f64 {
    let found = outcome.series.iter().filter(|s| s.plot == plot).flat_map(|s| &s.points);
    found.filter(|point| point.label.as_deref() == Some(name)).map(|point| point.y).next().unwrap()
}

#[test]
fn a_relay_costs_less_processor_time_than_those_that_copy_and_no_more_than_the_one_that_splices() {
    let _alone = alone();
    let outcome = quick("miniproxy/throughput");
    let cost = |load: &str, who| bar(&outcome, &format!("Cost, {load}"), who);
    for flows in ["1 flow", "8 flows"] {
        assert!(cost(flows, "viaduct") < 0.7 * cost(flows, "nginx stream"), "{outcome:#?}");
        assert!(cost(flows, "viaduct") < 1.5 * cost(flows, "HAProxy"), "{outcome:#?}");
    }
    let (ours, theirs) = (cost("connections", "viaduct"), cost("connections", "HAProxy"));
    assert!(ours < 1.3 * theirs, "{outcome:#?}");
}

#[test]
fn idle_relays_hold_no_pipes_and_little_memory() {
    let _alone = alone();
    let outcome = quick("miniproxy/connections");
    assert_eq!(outcome.checks.len(), 4);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn a_way_by_a_proxy_aside_takes_as_long_as_the_papers_equations_say() {
    let _beside = beside_others();
    let outcome = quick("miniproxy/off-path");
    let of_the_model = |name: &str| name.ends_with("over the model's");
    let ratios: Vec<_> = outcome.checks.iter().filter(|c| of_the_model(&c.name)).collect();
    assert_eq!(ratios.len(), 12);
    for ratio in ratios {
        assert!((0.95..1.15).contains(&ratio.value), "{ratio:?}");
    }
}

#[test]
fn tcp_of_1999_stalls_where_todays_does_not() {
    let _alone = alone();
    let outcome = quick("lfn/traces");
    assert_eq!(outcome.checks.len(), 6);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn a_tunnel_lets_squids_answer_sooner_and_only_a_links_own_sessions_wait_for_it() {
    let _beside = beside_others();
    let outcome = quick("lfn/mux");
    // Against connections that Squid has kept there is nothing left to win: on a busy machine
    // either may be ahead.
    let counted = |name: &str| !name.contains("kept");
    let checks: Vec<_> = outcome.checks.iter().filter(|c| counted(&c.name)).collect();
    assert_eq!(checks.len(), 14);
    for check in checks {
        assert!(check.holds, "{check:?}");
    }
}

#[test]
fn a_tunnel_saves_small_documents_a_round_trip_and_its_sessions_do_not_hold_each_other_up() {
    let _beside = beside_others();
    let outcome = quick("lfn/delay");
    assert_eq!(outcome.checks.len(), 10);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
fn small_objects_come_by_trickles_in_the_one_round_trip_that_tcp_takes_to_connect() {
    let _alone = alone();
    let outcome = quick("trickles/object-size");
    let plot = outcome.series.iter().filter(|s| s.plot == "Time for an object");
    let [ours, theirs] = plot.map(|s| s.points[0].y).collect::<Vec<_>>()[..] else { panic!() };
    assert!(ours < 1.6 && ours + 0.6 < theirs, "{ours} and {theirs} round trips");
    let answer = outcome.checks.iter().find(|check| check.name.starts_with("bytes of the first"));
    assert!(answer.unwrap().holds, "{}", print_table(&outcome, false));
}

/// Every row that could be run does as it does directly.
fn assert_alike(outcome: &Outcome) {
    let otherwise = outcome.params.iter().filter(|(name, _)| name.starts_with("otherwise"));
    for (name, what) in otherwise {
        eprintln!("{name}: {}", what.as_str().unwrap_or_default());
    }
    assert!(outcome.holds(), "{}", print_table(outcome, false));
}

#[test]
fn attacks_on_a_server_that_keeps_nothing_are_refused_and_counted() {
    let _alone = alone();
    let outcome = quick("trickles/attacks");
    assert_eq!(outcome.checks.len(), 25);
    // What the liars and the honest get in three seconds is not steady; that lies are worth little is.
    for check in outcome.checks.iter().filter(|c| !c.name.starts_with("who ")) {
        assert!(check.holds, "{}", print_table(&outcome, false));
    }
    let hides = |c: &&viaduct_lab::experiment::Check| c.name.starts_with("who hides losses");
    let hides = outcome.checks.iter().find(hides).unwrap();
    assert!(hides.value < 1.0, "{}", print_table(&outcome, false));
}

#[test]
fn real_programs_do_as_they_do_directly() {
    let _alone = alone();
    let outcome = quick("tesla/matrix");
    assert_eq!(outcome.checks.len(), 3, "{outcome:#?}");
    assert_alike(&outcome);
}

#[test]
#[ignore = "some twenty programs in nine ways: make matrix"]
fn all_real_programs_do_as_they_do_directly() {
    let _alone = alone();
    let outcome = conduct("tesla/matrix", false);
    assert_eq!(outcome.checks.len(), 22, "{outcome:#?}");
    assert_alike(&outcome);
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn offloaded_programs_lose_nothing_and_others_less_than_behind_relays() {
    let _alone = alone();
    let outcome = quick("tesla/latency");
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
    let outcome = quick("tesla/bandwidth");
    let at = |name: &str| outcome.checks.iter().find(|check| check.name == name).unwrap().value;
    assert!(at("100 Mb/s link, blocks of 65536: viaduct over plain") > 0.9, "{outcome:#?}");
    assert!(at("loopback, blocks of 65536: viaduct over TCP proxies") > 0.8, "{outcome:#?}");
    assert!(at("loopback, blocks of 65536: crypt over stunnel") > 0.9, "{outcome:#?}");
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn rates_and_delays_are_those_that_were_asked_for_by_every_interposer() {
    let _alone = alone();
    let outcome = quick("tesla/shape");
    assert_eq!(outcome.checks.len(), 15);
    for check in &outcome.checks {
        let within = if check.name.contains("delay") { 0.0..4.0 } else { 0.9..1.1 };
        assert!(within.contains(&check.value), "{}", print_table(&outcome, false));
    }
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn a_transfer_outlives_a_change_of_address_and_an_outage() {
    let _alone = alone();
    let outcome = quick("tesla/migrate");
    assert_eq!(outcome.checks.len(), 3);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn two_links_carry_more_than_one_and_text_shrinks() {
    let _alone = alone();
    let outcome = quick("tesla/handlers");
    assert_eq!(outcome.checks.len(), 3);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn connecting_costs_little_more_and_nothing_is_left_of_flows() {
    let _alone = alone();
    let outcome = quick("tesla/cost");
    assert_eq!(outcome.checks.len(), 12);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn an_open_flow_goes_around_a_path_that_fails_and_back() {
    let _alone = alone();
    let outcome = quick("tesla/route");
    assert_eq!(outcome.checks.len(), 5);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}

#[test]
#[ignore = "figures of the session layer: make matrix"]
fn four_flows_that_share_an_estimate_take_no_more_than_one_and_share_it_alike() {
    let _alone = alone();
    let outcome = quick("tesla/congestion");
    assert_eq!(outcome.checks.len(), 5);
    assert!(outcome.holds(), "{}", print_table(&outcome, false));
}
