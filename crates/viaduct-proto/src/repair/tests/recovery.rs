//! Recovery of lost packets, each of them once, with bounded memory.

use super::*;

#[test]
fn single_losses_are_recovered_byte_for_byte() {
    let mut world = World::new(&layered());
    let missing = world.stream(2_000, |_, i| i % 50 == 7, 0.0);
    assert_eq!(missing, 0);
    let stats = world.b_stats().receiver;
    assert_eq!((stats.recovered, stats.link.lost, stats.link.bursts[0]), (40, 40, 40));
    assert_eq!((stats.garbled, stats.foreign, stats.unrecoverable), (0, 0, 0));
    assert!(stats.latency_sum / 40 < 8_000, "a repair covers the packets of 8 ms");
}

#[test]
fn every_code_masks_two_percent() {
    let codes = [
        layered(),
        Code::ReedSolomon(reed_solomon::Parameters { r: 8, c: 3, interleave: 5 }),
        Code::ReedSolomon(reed_solomon::Parameters { r: 100, c: 30, interleave: 1 }),
        Code::Window(window::Parameters { window: 100, packets: 10, repairs: 3 }),
    ];
    for code in codes {
        let mut world = World::new(&code);
        let missing = world.stream(3_000, |rng, _| rng.chance(0.02), 0.02);
        let stats = world.b_stats().receiver;
        let (garbled, lost) = (stats.garbled, stats.link.lost);
        assert!(missing <= 2 && garbled == 0, "{code:?}: {missing} of {lost}, garbled {garbled}");
        assert_eq!(missing as u64, stats.unrecoverable, "{code:?}");
    }
}

#[test]
fn bursts_are_recovered_and_measured() {
    let mut world = World::new(&layered());
    let missing = world.stream(3_000, |_, i| (300..320).contains(&(i % 600)), 0.0);
    let link = world.b_stats().receiver.link;
    assert_eq!((missing, link.lost, link.bursts[5]), (0, 100, 5));
    assert_eq!(world.a_stats().reported, link, "the receiver reports to the sender");
}

#[test]
fn identical_packets_are_counted_one_by_one() {
    let mut world = World::new(&layered());
    let twin = world.packet();
    for i in 0..40 {
        world.send(&twin, i % 5 == 2);
        world.run(Duration::from_millis(1), |_, _| false);
    }
    world.run(Duration::from_millis(100), |_, _| false);
    assert_eq!(world.delivered[&twin], 40);
}

#[test]
fn the_tail_of_a_transfer_is_protected_by_the_idle_timer() {
    let mut world = World::new(&layered());
    let packet = world.packet();
    world.send(&packet, true);
    world.run(Duration::from_millis(40), |_, _| false);
    assert_eq!(world.delivered[&packet], 1);
    assert!(world.a_stats().sender.flushed >= 1);
}

#[test]
fn packets_that_arrive_slightly_late_are_delivered_once() {
    let one_layer = Parameters { r: 8, interleaves: vec![1], delay_xors: false };
    let mut world = World::new(&Code::Layered(one_layer));
    let packets: Vec<_> = (0..64).map(|_| world.packet()).collect();
    for (i, packet) in packets.iter().enumerate() {
        // Two packets of one repair are late together, so neither can be recovered.
        world.a.handle_outgoing(world.now, world.now, &mut packet.clone());
        match i {
            10 | 11 => {}
            16 => {
                world.exchange(&mut |_, _| false);
                world.arrive(&packets[10]);
                world.arrive(&packets[11]);
                world.arrive(packet);
            }
            _ => world.arrive(packet),
        }
        world.exchange(&mut |_, _| false);
    }
    world.run(Duration::from_millis(50), |_, _| false);
    // Once the first of the two has arrived, the other is recovered; its original then arrives,
    // too.
    assert!(packets.iter().all(|packet| world.delivered[packet] == 1));
    let stats = world.b_stats().receiver;
    assert_eq!((stats.late, stats.recovered, stats.link.lost), (2, 0, 0));
}

#[test]
fn packets_missed_by_the_tap_do_not_count_as_lost() {
    let mut world = World::new(&layered());
    world.stream(100, |_, _| false, 0.0);
    for i in 0..200 {
        let packet = world.packet();
        world.a.handle_outgoing(world.now, world.now, &mut packet.clone());
        // The hosts received the packet, but the gateway's tap missed it.
        if !(50..80).contains(&i) {
            world.b.handle_incoming(world.now, world.now, &mut packet.clone());
        } else {
            world.b.miss_incoming(world.now);
        }
        world.run(Duration::from_millis(1), |_, _| false);
    }
    assert_eq!(world.b_stats().receiver.recovered, 0);
    world.run(Duration::from_secs(3), |_, _| false);
    assert_eq!(world.stream(400, |_, i| i % 25 == 3, 0.0), 0, "the tap sees packets again");
}

#[test]
fn memory_is_bounded_for_any_input() {
    let mut world = World::new(&layered());
    for _ in 0..30_000 {
        let packet = world.packet();
        let lost = world.rng.chance(0.3);
        world.send(&packet, lost);
        world.exchange(&mut |rng, _| rng.chance(0.3));
        world.now += Duration::from_micros(100);
        world.a.handle_timeout(world.now);
        world.b.handle_timeout(world.now);
    }
    assert!(world.b.memory() < 9 << 20, "{}", world.b.memory());
}
