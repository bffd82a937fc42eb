//! The repair channel's datagrams and messages: a message that parses is emitted again unchanged,
//! except for names, of which only the counts are checked.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::repair::report::{self, REPORT, Report, TRIALS};
use viaduct_proto::repair::section::{self, MAX_NAMES, Section};
use viaduct_proto::repair::terms::Terms;
use viaduct_proto::repair::wire::{Datagram, TAG};

fuzz_target!(|bytes: &[u8]| {
    if let Some(datagram) = Datagram::parse(bytes) {
        let mut head = Vec::new();
        datagram.emit(&mut head);
        assert!(bytes.starts_with(&head) && bytes.len() >= head.len() + TAG);
    }
    let mut again = Vec::new();
    for section in section::sections(bytes).flatten() {
        again.clear();
        match &section {
            Section::Repair(repair, part) => {
                assert!(repair.cover.seqs().is_sorted() && repair.cover.last() < u64::MAX);
                section::emit_repair(repair, *part, &mut again);
            }
            Section::Need(need) => section::emit_need(*need, &mut again),
            Section::Names(names) => {
                assert!((1..=MAX_NAMES).contains(&names.tags().len()));
                let times = names.times.map(|times| times.sent().count());
                assert!(times.is_none_or(|count| count == names.tags().len()));
            }
            Section::Copies(copies) => {
                let packets: Vec<_> = copies.packets().map(|packet| packet.unwrap()).collect();
                let packets = packets.into_iter();
                section::emit_copies(copies.first, copies.fields, packets, &mut again);
            }
            Section::Other(TRIALS, body) => {
                if let Some(trials) = report::parse_trials(body) {
                    report::emit_trials(&trials, &mut again);
                    assert_eq!(again, *body);
                }
                again.clear();
            }
            Section::Other(REPORT, body) => {
                if let Some(report) = Report::parse(body) {
                    report.emit(&mut again);
                    assert_eq!(Report::parse(&again), Some(report));
                }
                again.clear();
            }
            Section::Other(_, body) => {
                if let Some(terms) = Terms::parse(body) {
                    terms.emit(&mut again);
                    assert_eq!(Terms::parse(&again).as_ref(), Some(&terms));
                }
                again.clear();
            }
        }
        if !again.is_empty() {
            assert_eq!(section::sections(&again).next(), Some(Some(section)));
        }
    }
});
