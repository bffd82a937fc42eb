//! An open flow during a flood of SYNs from spoofed addresses.

use viaduct_lab::flood::Flood;

use super::*;

/// SYNs per second: more than an event loop can process on any machine.
const SYNS_A_SECOND: u64 = 300_000;

#[test]
fn an_open_flow_continues_during_a_syn_flood() {
    for more in [&["--accept", "after-connect"][..], &[]] {
        let chain = chain("delay=1ms");
        let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0"];
        let proxy = Proxy::start(&chain.hops()[0], &[&path[..], more].concat()).unwrap();
        let world = World { proxy, chain };
        let ip: IpAddr = world.chain.server().v4().into();
        let listener = world.listen(ip);
        let mut client = world.connect(ip).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        echo(&mut client, &mut server);
        let to = (world.chain.server().v4(), PORT);
        let to = std::net::SocketAddrV4::new(to.0, to.1);
        let longest = Duration::from_secs(10);
        let _flood = Flood::start(world.hop(), to, SYNS_A_SECOND, longest, 1).unwrap();
        thread::sleep(Duration::from_millis(300));
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < Duration::from_secs(2) {
            let one = Instant::now();
            echo(&mut client, &mut server);
            times.push(one.elapsed());
        }
        times.sort_unstable();
        // The target is 10 ms on an idle machine. These limits also hold on two slow cores with
        // other tests: there the 99th percentile exceeded 200 ms. When the loop read all pending
        // SYNs before other events, each echo took seconds.
        let [median, slow] = [50, 99].map(|percent| times[times.len() * percent / 100]);
        let text = format!("{more:?}: {median:?} and {slow:?} of {}", times.len());
        assert!(median < Duration::from_millis(100), "{text}");
        assert!(slow < Duration::from_secs(1), "{text}");
    }
}
