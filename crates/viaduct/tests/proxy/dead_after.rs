//! Ends that vanish silently.

use super::*;
use crate::common::VANISH;

const DEAD_AFTER: Duration = Duration::from_secs(3);

#[test]
fn a_vanished_end_is_detected_and_a_live_one_with_a_zero_window_is_kept() {
    let chain = chain("delay=1ms");
    let path = ["--listen", "[::]:7000", "--intercept", "0.0.0.0/0", "--dead-after", "3s"];
    let proxy = Proxy::start(&chain.hops()[0], &path).unwrap();
    let world = World { proxy, chain };
    let ip = world.addresses()[0];
    let listener = world.listen(ip);
    let flow = || (world.connect(ip).unwrap(), listener.accept().unwrap().0);
    let (mut idle, mut unacknowledged, mut shut) = (flow(), flow(), flow());
    for (client, server) in [&mut idle, &mut unacknowledged] {
        echo(client, server);
    }
    let sent = fill(&mut shut.0);
    // The peer with a zero window answers probes, but the kernel's user timeout would reset its
    // connection.
    thread::sleep(2 * DEAD_AFTER);
    shut.1.read_exact(&mut vec![0; sent]).unwrap();
    fill(&mut shut.0);
    echo(&mut idle.0, &mut idle.1);

    world.chain.server().run("nft", &[VANISH]).unwrap();
    unacknowledged.0.write_all(b"lost").unwrap();
    let gone = Instant::now();
    for (what, (client, _)) in
        [("idle", &mut idle), ("data", &mut unacknowledged), ("shut", &mut shut)]
    {
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {:?}", gone.elapsed());
        let limit = 2 * DEAD_AFTER + Duration::from_secs(1);
        assert!(gone.elapsed() < limit, "{what}: {:?}", gone.elapsed());
    }
}
