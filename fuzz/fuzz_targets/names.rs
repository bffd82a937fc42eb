//! DNS queries. For any query of a program, the answer matches its question and is short, and an
//! address in the answer stands for the name in the question.
#![no_main]

use libfuzzer_sys::fuzz_target;
use viaduct_proto::fake_ip::wire::{A, IN, Query};
use viaduct_proto::fake_ip::{FakeIpPool, FakeIpPrefix};

fuzz_target!(|input: &[u8]| {
    let mut pool = FakeIpPool::new(FakeIpPrefix::default());
    // A name for reverse look-ups.
    pool.fake_ip("mars.example", true);
    let (query, answer) = (Query::parse(input), pool.answer(input));
    assert_eq!(query.is_some(), answer.is_some());
    let (Some(query), Some(answer)) = (query, answer) else { return };
    assert_eq!(answer[..2], input[..2]);
    assert!(answer[2] & 0x80 != 0 && answer.len() <= 12 + 255 + 4 + 12 + 255);
    // There is one answer, whose four bytes are not a loopback address.
    if query.kind == A && query.class == IN && answer[7] == 1 && answer[answer.len() - 4] != 127 {
        let ip: [u8; 4] = answer[answer.len() - 4..].try_into().expect("four");
        assert_eq!(pool.name_of(ip.into()).as_deref(), query.name.as_deref());
    }
});
