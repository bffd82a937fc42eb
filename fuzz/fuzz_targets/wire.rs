//! The repair channel's datagrams and messages: what parses is written again as it was read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::repair::wire::{Datagram, Message, TAG, emit_repair, emit_report};

fuzz_target!(|bytes: &[u8]| {
    if let Some(datagram) = Datagram::parse(bytes) {
        let mut head = Vec::new();
        datagram.emit(&mut head);
        assert!(bytes.starts_with(&head) && bytes.len() >= head.len() + TAG);
    }
    let mut again = Vec::new();
    match Message::parse(bytes) {
        Some(Message::Repair(repair, announced)) => {
            assert!(repair.cover.seqs().is_sorted() && repair.cover.last() < u64::MAX);
            let announced: Vec<_> = announced.iter().collect();
            assert!(announced.iter().all(|a| a.position < repair.cover.count));
            emit_repair(&repair, announced.into_iter(), &mut again);
            assert_eq!(again, bytes);
        }
        Some(Message::Report(report)) => {
            emit_report(&report, &mut again);
            assert_eq!(again[4..], bytes[4..], "but for reserved bytes");
        }
        Some(Message::Terms(terms)) => {
            terms.emit(&mut again);
            assert!(matches!(Message::parse(&again), Some(Message::Terms(same)) if same == terms));
        }
        None => {}
    }
});
