//! The link in virtual time.

use proptest::prelude::*;

use super::*;

fn config(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

/// Pushes `packets` packets of `len` bytes, one every `gap` nanoseconds, and returns what is
/// delivered.
fn carry(link: &mut Link<u64>, packets: u64, len: usize, gap: u64) -> Vec<Delivery<u64>> {
    let mut out = Vec::new();
    for i in 0..packets {
        let now = at(i * gap);
        while let Some(due) = link.poll_timeout().filter(|&due| due <= now) {
            out.extend(std::iter::from_fn(|| link.poll(due)));
        }
        let _ = link.push(now, i, len);
    }
    while let Some(due) = link.poll_timeout() {
        out.extend(std::iter::from_fn(|| link.poll(due)));
    }
    out
}

#[test]
fn delay_and_rate_are_exact() {
    let mut link = Link::new(config("rate=100M,delay=50ms"), 1, Instant::ZERO);
    for i in 0..1000 {
        link.push(Instant::ZERO, i, 1250).unwrap();
    }
    for i in 0..1000u64 {
        let due = link.poll_timeout().unwrap();
        assert_eq!(due, at(50_000_000 + (i + 1) * 100_000));
        assert_eq!(link.poll(at(due.as_nanos() - 1)), None);
        let delivery = link.poll(due).unwrap();
        assert_eq!((delivery.item, delivery.due, delivery.ordinal), (i, due, i));
    }
    assert_eq!(link.poll_timeout(), None);
    assert_eq!(link.stats().bytes, 1_250_000);
}

#[test]
fn a_late_poll_does_not_move_the_due_times() {
    let mut link = Link::new(config("rate=8k"), 1, Instant::ZERO);
    (0..5).for_each(|i| link.push(Instant::ZERO, i, 1).unwrap());
    let late = at(1_000_000_000);
    let dues: Vec<_> = std::iter::from_fn(|| link.poll(late)).map(|d| d.due.as_nanos()).collect();
    assert_eq!(dues, [1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000]);
}

#[test]
fn independent_loss_is_within_its_confidence_interval() {
    let n = 1_000_000;
    let mut link = Link::new(config("loss=1%"), 3, Instant::ZERO);
    carry(&mut link, n, 100, 1_000);
    let (mean, deviation) = (n as f64 * 0.01, (n as f64 * 0.01 * 0.99).sqrt());
    assert!((link.stats().lost as f64 - mean).abs() < 4.0 * deviation, "{:?}", link.stats());
    let bursts = link.take_record().burst_lengths();
    let singles = bursts.iter().filter(|&&b| b == 1).count() as f64 / bursts.len() as f64;
    assert!((singles - 0.99).abs() < 0.005, "{singles}");
}

#[test]
fn bursts_have_the_configured_length_and_frequency() {
    for (rate, length) in [(0.01, 8u32), (0.001, 30), (0.1, 3), (0.3, 1)] {
        let loss = Loss::Bursts { rate, length };
        let mut link = Link::new(LinkConfig { loss, ..Default::default() }, 5, Instant::ZERO);
        let n = 2_000_000u64;
        carry(&mut link, n, 100, 1_000);
        let record = link.take_record();
        let mut bursts = record.burst_lengths();
        bursts.pop(); // the last may be cut off by the end
        assert!(bursts.iter().all(|&b| b == length), "{rate} {length}");
        // The variance of the number of bursts is at most that of a Poisson distribution.
        let expected = n as f64 * rate / f64::from(length);
        let off = (bursts.len() as f64 - expected).abs();
        assert!(off < 4.0 * expected.sqrt() + 1.0, "{rate} {length}: {} {expected}", bursts.len());
    }
}

#[test]
fn gilbert_elliott_has_its_mean_loss_and_burst_length() {
    let loss: Loss = "ge:0.2%:10%:0:1".parse().unwrap();
    let mut link =
        Link::new(LinkConfig { loss: loss.clone(), ..Default::default() }, 9, Instant::ZERO);
    let n = 4_000_000u64;
    carry(&mut link, n, 100, 1_000);
    let lost = link.stats().lost as f64 / n as f64;
    assert!((lost / loss.mean() - 1.0).abs() < 0.06, "{lost} {}", loss.mean());
    let bursts = link.take_record().burst_lengths();
    let mean = bursts.iter().sum::<u32>() as f64 / bursts.len() as f64;
    assert!((mean - 10.0).abs() < 0.5, "{mean}");
}

#[test]
fn a_trace_is_replayed_exactly() {
    for (repeats, times) in [(true, 3), (false, 1)] {
        let loss = Loss::Trace(Trace { runs: vec![1, 2, 2, 1, 1], repeats });
        let mut link = Link::new(LinkConfig { loss, ..Default::default() }, 1, Instant::ZERO);
        carry(&mut link, 21, 100, 1_000);
        let lost: Vec<_> = link.take_record().drops.iter().map(|d| d.ordinal).collect();
        let expected: Vec<u64> = (0..times).flat_map(|t| [1, 2, 5].map(|o| o + 7 * t)).collect();
        assert_eq!(lost, expected);
    }
}

#[test]
fn composed_losses_add_up() {
    let loss: Loss = "0.1%+0.1%x30".parse().unwrap();
    let mut link = Link::new(LinkConfig { loss, ..Default::default() }, 2, Instant::ZERO);
    let n = 4_000_000;
    carry(&mut link, n, 100, 1_000);
    let bursts = link.take_record().burst_lengths();
    let long = bursts.iter().filter(|&&b| b >= 30).count() as f64;
    let single = bursts.iter().filter(|&&b| b == 1).count() as f64;
    assert!((long - 133.0).abs() < 4.0 * 133f64.sqrt(), "{long}");
    assert!((single - 4000.0).abs() < 4.0 * 4000f64.sqrt() + 20.0, "{single}");
}

#[test]
fn the_same_seed_loses_the_same_packets_whatever_the_timing() {
    let lost = |seed, text: &str, gap| {
        let mut link = Link::new(config(text), seed, Instant::ZERO);
        carry(&mut link, 20_000, 1000, gap);
        link.take_record().drops
    };
    let first = lost(7, "loss=2%x4", 1_000);
    assert_eq!(first, lost(7, "loss=2%x4,delay=5ms,jitter=1ms,duplicate=5%,corrupt=5%", 77));
    assert_ne!(first, lost(8, "loss=2%x4", 1_000));
}

#[test]
fn the_queue_drops_at_the_tail_by_time_and_by_bytes() {
    // 1000 bytes take 1 ms. One is on the wire, ten may wait.
    for text in ["rate=8M,queue=10ms", "rate=8M,queue=10kB", "rate=8M,queue=1s/10kB"] {
        let mut link = Link::new(config(text), 1, Instant::ZERO);
        let refused: Vec<_> =
            (0..13).filter_map(|i| link.push(Instant::ZERO, i, 1000).err()).collect();
        let full = |item| Refused { item, reason: Reason::Queue };
        assert_eq!(refused, [full(11), full(12)], "{text}");
        assert_eq!(link.backlog(), 10_000);
        link.push(at(1_000_000), 13, 1000).unwrap();
        let drops = link.take_record().drops;
        assert_eq!(drops[0], Dropped { ordinal: 11, reason: Reason::Queue });
        link.push_unheld();
        let stats = link.stats();
        assert_eq!((stats.sent, stats.queue_dropped, link.held()), (15, 3, 12));
    }
}

#[test]
fn a_new_rate_applies_to_queued_packets_and_a_shorter_delay_does_not_reorder() {
    let mut link = Link::new(config("rate=8M,delay=100ms"), 1, Instant::ZERO);
    (0..3).for_each(|i| link.push(Instant::ZERO, i, 1000).unwrap());
    link.set_config(at(500_000), config("rate=80M,delay=1ms"));
    let dues: Vec<_> =
        std::iter::from_fn(|| link.poll_timeout().and_then(|due| link.poll(due))).collect();
    assert_eq!(dues.iter().map(|d| d.item).collect::<Vec<_>>(), [0, 1, 2]);
    // The first keeps its due time; the others would be due at 2.1 and 2.2 ms, and wait for it.
    assert!(dues.iter().all(|d| d.due == at(101_000_000)), "{dues:?}");
}

#[test]
fn reordering_duplication_and_corruption_have_the_configured_frequency() {
    let n = 100_000u64;
    let text = "delay=1ms,reorder=2%:50us,duplicate=1%,corrupt=3%";
    let mut link = Link::new(config(text), 4, Instant::ZERO);
    let out = carry(&mut link, n, 100, 1_000);
    let near = |count: u64, p: f64| {
        let mean = n as f64 * p;
        assert!((count as f64 - mean).abs() < 4.0 * mean.sqrt(), "{count} {mean}");
    };
    let stats = link.stats();
    near(stats.reordered, 0.02);
    near(stats.duplicated, 0.01);
    near(stats.corrupted, 0.03);
    assert_eq!(out.len() as u64, n);
    assert_eq!(out.iter().filter(|d| d.copies == 2).count() as u64, stats.duplicated);
    assert!(out.iter().filter_map(|d| d.flipped).all(|bit| (320..800).contains(&bit)));
    assert!(out.windows(2).all(|w| w[0].due <= w[1].due));
    let overtaken = out.windows(2).filter(|w| w[0].ordinal > w[1].ordinal).count() as u64;
    assert!(overtaken > stats.reordered / 2, "{overtaken} {stats:?}");
}

#[test]
fn jitter_stays_in_its_bounds_and_keeps_the_order() {
    let mut link = Link::new(config("delay=10ms,jitter=2ms"), 4, Instant::ZERO);
    let out = carry(&mut link, 20_000, 100, 5_000_000);
    let delays: Vec<f64> =
        out.iter().map(|d| (d.due - at(d.item * 5_000_000)).as_secs_f64()).collect();
    assert!(delays.iter().all(|d| (0.008..=0.012).contains(d)));
    let mean = delays.iter().sum::<f64>() / delays.len() as f64;
    assert!((mean - 0.010).abs() < 0.00005, "{mean}");
    assert!(out.windows(2).all(|w| w[0].ordinal < w[1].ordinal));
}

#[test]
fn a_flipped_bit_is_flipped_back() {
    let mut packet = vec![0u8; 60];
    flip_bit(&mut packet, 327);
    assert_eq!(packet[40], 1);
    flip_bit(&mut packet, 327);
    flip_bit(&mut packet, 480);
    assert!(packet.iter().all(|&b| b == 0));
}

#[test]
fn errors_name_the_fault_and_the_right_form() {
    let says = |text: &str| text.parse::<LinkConfig>().unwrap_err().to_string();
    assert_eq!(says("delay"), "'delay' is not a setting: give key=value, such as delay=50ms");
    assert_eq!(says("delay=5"), "delay=5: expected a time, such as 50ms or 200us");
    assert!(says("rat=5M").starts_with("unknown key 'rat': known are rate"));
    assert_eq!(says("delay=1ms,delay=2ms"), "'delay' is given twice: give it once");
    assert_eq!(says("loss=120%"), "loss=1.2: a probability is 0 to 1, or 0% to 100%");
    assert!(says("loss=95%x8").contains("at most 0.8889"));
    assert!(says("burst=8").contains("an independent loss"));
    assert!(says("jitter=1ms").contains("more than delay"));
    assert!(says("rate=0").contains("carries nothing"));
    assert!(says("loss=trace:0").contains("no packet"));
    assert!(says("queue=1ms/2ms").contains("a time or bytes"));
    assert!(says("rate=-5M").contains("bits per second"));
}

#[test]
fn text_reads_as_documented() {
    let read = config("rate=200M, delay=50ms,loss=1%,burst=8,queue=100ms");
    let expected = LinkConfig {
        rate: Some(200_000_000),
        delay: Duration::from_millis(50),
        loss: Loss::Bursts { rate: 0.01, length: 8 },
        queue: QueueLimit { time: Some(Duration::from_millis(100)), bytes: None },
        ..Default::default()
    };
    assert_eq!(read, expected);
    assert_eq!(read.to_string(), "rate=200M,delay=50ms,queue=100ms,loss=1%x8");
    assert_eq!(config(""), LinkConfig::default());
    assert_eq!(config("rate=1.5G").rate, Some(1_500_000_000));
}

fn any_loss() -> impl Strategy<Value = Loss> {
    let share = 0.0..0.4f64;
    let one = prop_oneof![
        share.clone().prop_map(|rate| Loss::Independent { rate }),
        (share.clone(), 1..60u32).prop_map(|(rate, length)| Loss::Bursts { rate, length }),
        (share.clone(), share.clone(), share.clone(), share).prop_map(|(a, b, c, d)| {
            Loss::GilbertElliott { p_good_to_bad: a, p_bad_to_good: b, loss_good: c, loss_bad: d }
        }),
        (prop::collection::vec(1..1000u32, 1..6), any::<bool>())
            .prop_map(|(runs, repeats)| Loss::Trace(Trace { runs, repeats })),
    ];
    prop_oneof![
        Just(Loss::None),
        one.clone(),
        prop::collection::vec(one, 2..4).prop_map(Loss::Both),
    ]
}

prop_compose! {
    fn any_config()(
        rate in prop::option::of(1..u64::MAX / 2),
        delay in 0..10_000_000_000u64, jitter in 0.0..1.0f64,
        bytes in prop::option::of(0..1u64 << 40), time in prop::option::of(0..1u64 << 40),
        loss in any_loss(),
        probability in 0.0..1.0f64, extra in 0..1u64 << 40,
        duplicate in 0.0..1.0f64, corrupt in (0..=10_000u32).prop_map(|c| f64::from(c) / 10_000.0),
    ) -> LinkConfig {
        LinkConfig {
            rate,
            delay: Duration::from_nanos(delay),
            jitter: Duration::from_nanos((delay as f64 * jitter) as u64),
            queue: QueueLimit { bytes, time: time.map(Duration::from_nanos) },
            loss,
            reorder: Reorder { probability, extra: Duration::from_nanos(extra) },
            duplicate,
            corrupt,
        }
    }
}

proptest! {
    #[test]
    fn printed_settings_parse_to_the_same_value(config in any_config()) {
        prop_assert_eq!(config.to_string().parse::<LinkConfig>().unwrap(), config);
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[a-z=0-9.%:,xBMks+/é]{0,40}") {
        let _ = text.parse::<LinkConfig>();
    }

    #[test]
    fn with_every_model_off_all_arrive_once_in_order_and_not_early(
        rate in prop::option::of(1_000_000..10_000_000_000u64),
        delay in 0..100_000_000u64,
        packets in prop::collection::vec((0..1_000_000u64, 1..9000usize), 1..200),
    ) {
        let delay = Duration::from_nanos(delay);
        let config = LinkConfig { rate, delay, ..Default::default() };
        let mut link = Link::new(config, 1, Instant::ZERO);
        let (mut now, mut entered, mut out) = (Instant::ZERO, Vec::new(), Vec::new());
        for (i, &(gap, len)) in packets.iter().enumerate() {
            now += Duration::from_nanos(gap);
            entered.push(now);
            prop_assert!(link.push(now, i, len).is_ok());
            out.extend(std::iter::from_fn(|| link.poll(now)));
        }
        while let Some(due) = link.poll_timeout() {
            prop_assert!(due > now);
            now = due;
            out.extend(std::iter::from_fn(|| link.poll(now)));
        }
        let order: Vec<_> = out.iter().map(|d| d.item).collect();
        prop_assert_eq!(order, (0..packets.len()).collect::<Vec<_>>());
        for delivery in &out {
            let least = rate.map_or(0, |r| delivery.len as u64 * 8_000_000_000 / r);
            let passed = delivery.due - entered[delivery.item];
            prop_assert!(passed >= delay + Duration::from_nanos(least));
        }
        prop_assert_eq!(link.held(), 0);
        prop_assert_eq!(link.backlog(), 0);
    }
}
