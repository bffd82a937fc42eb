use super::*;

const MSS: usize = 1000;

fn tokens(total: u64, least_window: u32) -> Tokens {
    let mut tokens = Tokens::default();
    tokens.hello(total, least_window);
    tokens
}

/// Sends all that `id` may send, and returns the number of bytes.
fn exhaust(tokens: &mut Tokens, id: AccountId) -> u64 {
    tokens.set_queued(id, true);
    loop {
        match tokens.allowance(id, usize::MAX, MSS) {
            0 => return tokens.outstanding(id),
            may => tokens.spend(id, may),
        }
        tokens.check();
    }
}

#[test]
fn a_single_stream_gets_half_of_the_buffer() {
    let mut tokens = tokens(100_000, 0);
    let id = tokens.open();
    assert_eq!(exhaust(&mut tokens, id), 50_000);
    assert_eq!(tokens.remaining(), 50_000);
}

#[test]
fn streams_that_send_together_get_equal_shares_of_half_of_the_buffer() {
    let mut tokens = tokens(100_000, 0);
    let ids: Vec<_> = (0..5).map(|_| tokens.open()).collect();
    ids.iter().for_each(|&id| tokens.set_queued(id, true));
    ids.iter().for_each(|&id| assert_eq!(exhaust(&mut tokens, id), 10_000));
    assert_eq!(tokens.remaining(), 50_000);
}

#[test]
fn a_late_stream_gets_at_most_half_of_the_rest_at_a_time() {
    let mut tokens = tokens(100_000, 0);
    let first = tokens.open();
    exhaust(&mut tokens, first);
    let second = tokens.open();
    tokens.set_queued(second, true);
    // The first stream is over its share of 25,000, so only the second is due.
    assert_eq!(tokens.allowance(second, usize::MAX, usize::MAX), 25_000);
}

#[test]
fn readers_that_have_stopped_leave_each_other_stream_its_least_window() {
    let mut tokens = tokens(100_000, 500);
    for _ in 0..100 {
        let stopped = tokens.open();
        exhaust(&mut tokens, stopped);
    }
    assert!(tokens.remaining() <= 1000, "{}", tokens.remaining());
    let id = tokens.open();
    tokens.set_queued(id, true);
    let may = tokens.allowance(id, usize::MAX, MSS);
    assert!(may >= 500, "{may}");
    tokens.spend(id, may);
    tokens.free(id, may as u32).unwrap();
    assert!(tokens.allowance(id, usize::MAX, MSS) >= 500, "and again");
}

#[test]
fn no_small_frames_are_sent_while_an_acknowledgement_is_due() {
    let mut tokens = tokens(100_000, 0);
    let id = tokens.open();
    exhaust(&mut tokens, id);
    tokens.free(id, 10).unwrap();
    assert_eq!(tokens.allowance(id, 5000, MSS), 0);
    assert_eq!(tokens.allowance(id, 10, MSS), 10, "unless no more bytes wait");
    tokens.free(id, 990).unwrap();
    assert_eq!(tokens.allowance(id, 5000, MSS), 1000);
}

#[test]
fn the_tokens_of_a_broken_link_come_back_when_the_peer_confirms() {
    let mut tokens = tokens(100_000, 0);
    let id = tokens.open();
    exhaust(&mut tokens, id);
    tokens.strand(id, 7);
    assert_eq!((tokens.remaining(), tokens.stranded()), (50_000, 50_000));
    tokens.release(7);
    assert_eq!((tokens.remaining(), tokens.active), (100_000, 0));
    tokens.check();
}

#[test]
fn acknowledgements_of_unsent_bytes_and_old_grants_do_not_count() {
    let mut tokens = tokens(100_000, 0);
    let id = tokens.open();
    tokens.spend(id, 10);
    assert_eq!(tokens.free(id, 11), Err(OverAcknowledged));
    tokens.set_total(300_000);
    tokens.set_total(200_000);
    tokens.hello(50, 0);
    assert_eq!(tokens.total, 300_000);
}

#[test]
fn a_hello_with_another_least_window_recounts_spent_tokens() {
    for (first, second) in [(8_192, 0), (0, 8_192), (4_096, 4_096)] {
        let mut tokens = Tokens::default();
        tokens.hello(100_000, first);
        let account = tokens.open();
        tokens.spend(account, 10_000);
        tokens.hello(100_000, second);
        tokens.check();
        tokens.free(account, 10_000).unwrap();
        tokens.check();
        assert_eq!(tokens.remaining(), 100_000);
    }
}
