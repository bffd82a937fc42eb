//! Selection of the transport: between a gateway behind NAT, which alone can connect, and a gateway
//! that listens.

use super::*;

/// Source of the datagrams of each transport, as the other gateway sees it.
fn source(gateway: usize, transport: Transport) -> Endpoint {
    let address = match (gateway, transport) {
        (0, Transport::Udp) => SocketAddr::from(([198, 51, 100, 1], 1_024)),
        (0, Transport::FakeTcp) => SocketAddr::from(([198, 51, 100, 1], 50_000)),
        _ => endpoint(2),
    };
    Endpoint { transport, address }
}

/// Two gateways, and the network between them.
struct Network {
    now: Instant,
    planes: [Plane; 2],
    /// For each gateway and transport, true if the gateway's datagrams pass.
    passes: [[bool; 2]; 2],
    /// Share of each gateway's long datagrams over UDP that a policer drops; short datagrams pass.
    policed: [f64; 2],
    /// Share of all datagrams over UDP that a strict policer drops.
    dropped: f64,
    rng: Rng,
    /// For each gateway and transport, number of the gateway's datagrams that arrived.
    arrived: [[usize; 2]; 2],
}

impl Network {
    fn new(choices: [TransportChoice; 2]) -> Network {
        let plane = |me: u8, peer| {
            let mut config = config(me, peer, layered());
            config.transport = choices[usize::from(me) - 1];
            config.endpoint = (me == 1).then(|| endpoint(2));
            Plane::new(local(me), vec![config], Instant::ZERO).unwrap()
        };
        let planes = [plane(1, 2), plane(2, 1)];
        let (now, passes, rng) = (Instant::ZERO, [[true; 2]; 2], Rng::from_seed(1));
        Network { now, planes, passes, policed: [0.0; 2], dropped: 0.0, rng, arrived: [[0; 2]; 2] }
    }

    fn exchange(&mut self) {
        for from in [0, 1, 0, 1] {
            let sent: Vec<_> =
                self.planes[from].transmits().map(|(to, of)| (to, of.to_vec())).collect();
            self.planes[from].clear_transmits();
            for (to, mut datagram) in sent {
                let transport = to.transport;
                assert_eq!(to, source(1 - from, transport), "at its visible address");
                let is_policed = transport == Transport::Udp && datagram.len() > 500;
                let is_dropped = is_policed && self.rng.chance(self.policed[from])
                    || transport == Transport::Udp
                        && self.dropped > 0.0
                        && self.rng.chance(self.dropped);
                if self.passes[from][transport as usize] && !is_dropped {
                    self.arrived[from][transport as usize] += 1;
                    let source = source(from, transport);
                    self.planes[1 - from].handle_datagram(self.now, source, &mut datagram);
                }
            }
        }
    }

    fn run(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        loop {
            self.exchange();
            let next = self.planes.iter().filter_map(Plane::poll_timeout).min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            self.planes.iter_mut().for_each(|plane| plane.handle_timeout(self.now));
        }
        self.now = end;
    }

    /// Sends a thousand packets a second from a host behind gateway `from` for some seconds; the
    /// network drops one in a hundred.
    fn stream(&mut self, from: usize, seconds: u64) {
        for n in 0..seconds * 1_000 {
            let mut packet = vec![0; 1_000];
            packet[28..36].copy_from_slice(&self.now.as_nanos().to_be_bytes());
            udp_header(&mut packet);
            if from == 1 {
                packet[12..20].rotate_left(4);
            }
            self.planes[from].handle_outgoing(self.now, self.now, &mut packet.clone());
            if n % 100 != 0 {
                self.planes[1 - from].handle_incoming(self.now, self.now, &mut packet);
            }
            self.run(1);
            self.planes.iter_mut().for_each(|plane| plane.injections().clear());
        }
    }

    /// Transports of the two gateways; `None` unless datagrams of both arrive over them.
    fn transports(&mut self) -> Option<[Transport; 2]> {
        self.arrived = [[0; 2]; 2];
        self.run(1_100);
        let of = [0, 1]
            .map(|n: usize| self.planes[n].facts(self.now).into_values().next().unwrap().transport);
        (0..2).all(|n| self.arrived[n][of[n] as usize] > 0).then_some(of)
    }
}

const UDP: Option<[Transport; 2]> = Some([Transport::Udp; 2]);
const FAKE_TCP: Option<[Transport; 2]> = Some([Transport::FakeTcp; 2]);

#[test]
fn udp_is_used_while_it_works() {
    let mut network = Network::new([TransportChoice::Auto; 2]);
    network.run(100);
    assert!(network.planes.iter().all(|plane| plane.stats()[0].1.up));
    assert_eq!(network.transports(), UDP);
    network.arrived = [[0; 2]; 2];
    network.run(600_000);
    assert_eq!([network.arrived[0][1], network.arrived[1][1]], [0, 0]);
}

#[test]
fn fake_tcp_is_selected_within_three_seconds_and_udp_when_it_works_again() {
    let mut network = Network::new([TransportChoice::Auto; 2]);
    for direction in [0, 1] {
        network.passes = [[true; 2]; 2];
        network.run(400_000);
        assert_eq!(network.transports(), UDP);
        // UDP is blocked in only one direction; the last report may have just arrived.
        network.passes[direction][0] = false;
        network.run(2_900);
        assert_eq!(network.transports(), FAKE_TCP, "direction {direction}");
    }
    network.passes = [[true; 2]; 2];
    network.run(1_000_000);
    assert_eq!(network.transports(), UDP);
    network.passes = [[false, true]; 2];
    network.run(2_900);
    assert_eq!(network.transports(), FAKE_TCP);
    let mut network = Network::new([TransportChoice::Auto; 2]);
    network.passes = [[false, true]; 2];
    network.run(1_900);
    assert_eq!(network.transports(), FAKE_TCP, "at the start");
    network.run(200_000);
    assert_eq!(network.transports(), FAKE_TCP);
}

#[test]
fn a_transport_that_one_gateway_forbids_is_not_used() {
    for only in Transport::ALL {
        for choices in [
            [TransportChoice::Only(only), TransportChoice::Auto],
            [TransportChoice::Auto, TransportChoice::Only(only)],
            [TransportChoice::Only(only); 2],
        ] {
            let mut network = Network::new(choices);
            network.run(2_000);
            assert_eq!(network.transports(), Some([only; 2]), "{choices:?}");
        }
    }
}

#[test]
fn a_changed_setting_takes_effect() {
    let mut network = Network::new([TransportChoice::Auto; 2]);
    network.run(1_000);
    let mut changed = config(1, 2, layered());
    changed.transport = TransportChoice::Only(Transport::FakeTcp);
    network.planes[0].change(vec![changed], network.now).unwrap();
    network.run(1_000);
    assert_eq!(network.transports(), FAKE_TCP);
}

#[test]
fn throttled_udp_is_abandoned_in_either_direction() {
    for from in [0, 1] {
        let mut network = Network::new([TransportChoice::Auto; 2]);
        network.run(1_000);
        network.stream(from, 30);
        assert_eq!(network.transports(), UDP, "without a policer");
        network.policed[from] = 0.6;
        network.stream(from, 25);
        assert_eq!(network.transports(), FAKE_TCP, "from {from}");
        let causes = [0, 1].map(|n: usize| {
            network.planes[n].facts(network.now).into_values().next().unwrap().cause
        });
        assert_eq!(causes, [Cause::Throttled; 2]);
        network.stream(from, 90);
        assert_eq!(
            network.transports(),
            FAKE_TCP,
            "that handshakes pass a throttle proves nothing"
        );
        network.policed[from] = 0.0;
        network.run(60_000);
        assert_eq!(network.transports(), UDP, "from {from}");
        network.stream(from, 60);
        assert_eq!(network.transports(), UDP, "from {from}");
    }
}

#[test]
fn udp_is_left_if_its_sessions_fall_silent_again_and_again() {
    for from in [0, 1] {
        let mut network = Network::new([TransportChoice::Auto; 2]);
        network.run(1_000);
        assert_eq!(network.transports(), UDP);
        network.dropped = 0.9;
        network.stream(from, 60);
        assert_eq!(network.transports(), FAKE_TCP, "from {from}");
        network.stream(from, 60);
        assert_eq!(network.transports(), FAKE_TCP, "from {from}");
        network.dropped = 0.0;
        network.run(300_000);
        assert_eq!(network.transports(), UDP, "from {from}");
    }
}

#[test]
fn drops_by_the_own_queue_do_not_count_as_a_throttle() {
    let mut network = Network::new([TransportChoice::Auto; 2]);
    network.run(1_000);
    network.policed[0] = 0.6;
    for _ in 0..30 {
        network.planes[0].handle_own_drops(network.now);
        network.stream(0, 1);
    }
    assert_eq!(network.transports(), UDP);
}
