use std::sync::Arc;

use proptest::prelude::*;

use super::testing::World;
use super::*;
use crate::time::{Duration, Instant};

const LIMIT: usize = 4_096;
/// Maximum bytes of one write.
const PIECE: usize = 2_000;

/// Event in the life of a flow.
#[derive(Clone, Debug)]
enum Step {
    Write(usize),
    Receive(usize),
    NetworkTakes(bool),
    ApplicationTakes(bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..PIECE).prop_map(Step::Write),
        4 => (0..PIECE).prop_map(Step::Receive),
        1 => any::<bool>().prop_map(Step::NetworkTakes),
        1 => any::<bool>().prop_map(Step::ApplicationTakes),
        3 => (0..300u64).prop_map(Step::Wait),
    ]
}

fn chain() -> impl Strategy<Value = Vec<&'static str>> {
    const HANDLERS: [&str; 4] =
        ["count", "shape:rate=1M", "shape:out=200k", "latency:delay=30ms,held=3000"];
    prop::collection::vec(prop::sample::select(&HANDLERS[..]), 0..6)
}

/// Bytes that a chain of paced handlers may hold between its ends.
fn inside(chain: &[&str]) -> usize {
    chain.len() * (3_000 + PIECE)
}

proptest! {
    #[test]
    fn no_byte_is_lost_repeated_or_reordered_and_the_ends_stay_within_bounds(
        chain in chain(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut world = World::new(&chain, LIMIT);
        let bound = LIMIT + PIECE + inside(&chain);
        for step in steps {
            match step {
                Step::Write(count) if world.chain.may_write() => world.write(count),
                Step::Receive(count) if world.may_receive => world.receive(count),
                Step::NetworkTakes(takes) => world.network_takes = takes,
                Step::ApplicationTakes(takes) => world.application_takes = takes,
                Step::Wait(millis) => {
                    let end = world.now + Duration::from_millis(millis);
                    world.run_until(end);
                }
                Step::Write(_) | Step::Receive(_) => {}
            }
            let (down, up) = world.held();
            prop_assert!(down <= bound && up <= bound, "{down} and {up} bytes");
        }
        (world.network_takes, world.application_takes) = (true, true);
        world.shutdown();
        prop_assert!(world.chain.poll_action().is_none());
        world.finish();
        let end = world.now + Duration::from_secs(600);
        world.run_until(end);
        world.assert_right();
        prop_assert!(world.is_shut());
        prop_assert_eq!(world.finished(), 1);
        world.close();
        world.run_until(end + Duration::from_secs(60));
        prop_assert_eq!(world.closed(), 1);
        prop_assert!(world.failed().is_empty());
    }
}

#[test]
fn each_direction_ends_by_itself() {
    for chain in [&[][..], &["count", "latency:delay=5ms"]] {
        let mut world = World::new(chain, LIMIT);
        world.shutdown();
        assert!(!world.chain.write(world.now, "late".into()), "the direction has ended");
        world.receive(1_000);
        let end = world.now + Duration::from_secs(1);
        world.run_until(end);
        assert_eq!((world.is_shut(), world.delivered(), world.finished()), (true, 1_000, 0));
        world.finish();
        world.run_until(end + Duration::from_secs(1));
        assert_eq!(world.finished(), 1);
    }
}

#[test]
fn a_reset_arrives_once_and_nothing_after_it() {
    let mut world = World::new(&["count", "count"], LIMIT);
    world.write(10);
    world.fail(Failure::Reset);
    world.fail(Failure::TimedOut);
    world.finish();
    assert_eq!((world.failed(), world.finished()), (&[Failure::Reset][..], 0));
    assert!(!world.chain.write(world.now, "more".into()) && !world.chain.may_write());
}

#[test]
fn close_sends_what_was_written_first_and_closes_once() {
    let mut world = World::new(&["latency:delay=5ms"], LIMIT);
    world.network_takes = false;
    world.write(1_000);
    world.close();
    world.close();
    let end = world.now + Duration::from_secs(1);
    world.run_until(end);
    assert_eq!((world.sent(), world.closed()), (0, 0));
    world.network_takes = true;
    world.run_until(end);
    assert_eq!((world.sent(), world.closed()), (1_000, 1));
}

#[test]
fn a_source_is_stopped_at_the_limit_and_goes_on_at_half_of_it() {
    let mut world = World::new(&["count"], LIMIT);
    (world.network_takes, world.application_takes) = (false, false);
    while world.chain.may_write() {
        world.write(100);
    }
    while world.may_receive {
        world.receive(100);
    }
    assert!(world.held().0 >= LIMIT && world.held().0 < LIMIT + 100, "{:?}", world.held());
    world.take(LIMIT / 4);
    assert!(!world.chain.may_write());
    world.take(LIMIT / 4 + 100);
    assert!(world.chain.may_write());
    world.application_takes = true;
    world.settle();
    assert!(world.may_receive);
}

#[test]
fn an_accepted_flow_has_an_application_once_its_handlers_accept() {
    let mut world = World::new(&["count", "latency:delay=5ms"], LIMIT);
    world.chain.accepted(world.now);
    assert_eq!(world.chain.poll_action(), Some(Action::Accepted));
    let mut world = World::new(&["count", "crypt:key=1.key"], LIMIT);
    while world.chain.poll_action().is_some() {}
    world.chain.accepted(world.now);
    assert_eq!(world.chain.poll_action(), None);
}

/// Factory of a test's handler.
struct Makes(fn() -> Box<dyn Handler + Send>);

impl Factory for Makes {
    fn name(&self) -> &'static str {
        "test"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        (self.0)()
    }
}

/// Chain of two handlers, made by `upper` and `lower`.
fn chain_of(
    upper: fn() -> Box<dyn Handler + Send>,
    lower: fn() -> Box<dyn Handler + Send>,
) -> Chain {
    let factories: [Arc<dyn Factory>; 2] = [Arc::new(Makes(upper)), Arc::new(Makes(lower))];
    Chain::new(Arc::new(factories), LIMIT, Instant::ZERO)
}

fn actions(chain: &mut Chain) -> Vec<Action> {
    std::iter::from_fn(|| chain.poll_action()).collect()
}

struct Passes;

impl Handler for Passes {}

const TTL: SocketOption = SocketOption { level: 0, name: 2, value: 9 };
const TOS: SocketOption = SocketOption { level: 0, name: 1, value: 16 };

/// Handler that does not pass one socket option on, and returns its own value for it.
struct HidesTtl;

impl Handler for HidesTtl {
    fn setsockopt(&mut self, cx: &mut Context<'_>, option: SocketOption) {
        if option.name != TTL.name {
            cx.output(FIRST).setsockopt(option);
        }
    }

    fn getsockopt(&mut self, cx: &mut Context<'_>, level: i32, name: i32) -> Option<i32> {
        if name == TTL.name { Some(64) } else { cx.output(FIRST).getsockopt(level, name) }
    }
}

#[test]
fn an_option_reaches_the_connection_unless_a_handler_absorbs_it() {
    let mut chain = chain_of(|| Box::new(Passes), || Box::new(HidesTtl));
    let (now, bottom) = (Instant::ZERO, chain.bottom().unwrap());
    let get = |chain: &mut Chain, of: SocketOption| chain.getsockopt(now, of.level, of.name);
    assert_eq!(get(&mut chain, TOS), None, "the value is that of the program's own socket");
    for option in [TTL, SocketOption { value: 8, ..TOS }, TOS] {
        chain.setsockopt(now, option);
    }
    let set = |option| Action::SetOption(bottom, option);
    assert_eq!(actions(&mut chain), [set(SocketOption { value: 8, ..TOS }), set(TOS)]);
    assert_eq!(chain.options(bottom).collect::<Vec<_>>(), [TOS]);
    assert_eq!((get(&mut chain, TOS), get(&mut chain, TTL)), (Some(16), Some(64)));
}

/// Handler that announces a client a second late.
struct Delays;

impl Handler for Delays {
    fn accept_ready(&mut self, cx: &mut Context<'_>, _from: Output) {
        cx.set_timer(Timer(0), Some(cx.now() + Duration::from_secs(1)));
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        cx.upstream().accept_ready();
    }
}

/// Handler that refuses all clients.
struct Refuses;

impl Handler for Refuses {
    fn accept_ready(&mut self, cx: &mut Context<'_>, _from: Output) {
        cx.upstream().failed(Failure::Denied);
    }
}

/// Lower handler with a handshake.
struct Shakes;

impl Handler for Shakes {
    fn listen(&mut self, cx: &mut Context<'_>) {
        cx.notify(b"listen".to_vec());
        cx.output(FIRST).listen();
    }

    fn accept(&mut self, cx: &mut Context<'_>) {
        cx.notify(b"accept".to_vec());
        cx.output(FIRST).accept();
    }

    fn accepted(&mut self, cx: &mut Context<'_>, _from: Output) {
        cx.notify(b"shake".to_vec());
        cx.upstream().accepted();
    }
}

#[test]
fn a_client_is_announced_to_all_handlers_before_any_of_them_shakes_hands() {
    let event = |text: &str| Action::Event(text.into());
    let mut chain = chain_of(|| Box::new(Delays), || Box::new(Shakes));
    chain.accepted(Instant::ZERO);
    assert_eq!(actions(&mut chain), [event("listen")]);
    chain.handle_timeout(chain.poll_timeout().unwrap());
    assert_eq!(actions(&mut chain), [event("accept"), event("shake"), Action::Accepted]);

    let mut chain = chain_of(|| Box::new(Refuses), || Box::new(Shakes));
    chain.accepted(Instant::ZERO);
    assert_eq!(actions(&mut chain), [event("listen"), Action::Failed(Failure::Denied)]);
}

/// Handler with a second output, over Trickles.
struct Forks;

impl Handler for Forks {
    fn start(&mut self, cx: &mut Context<'_>) {
        let outputs = (cx.plumb(), cx.plumb_over(OutputTransport::Trickles));
        assert_eq!(outputs.0, FIRST);
        cx.output(outputs.1).connect(Address::Name("other".into(), 80));
    }
}

/// Handler whose output is over TCP, even if a handler above names another transport.
struct OverTcp;

impl Handler for OverTcp {
    fn start(&mut self, cx: &mut Context<'_>) {
        cx.plumb_over(OutputTransport::Tcp);
    }
}

#[test]
fn an_output_is_over_the_transport_that_the_lowest_handler_names() {
    let (tcp, trickles) = (Some(OutputTransport::Tcp), Some(OutputTransport::Trickles));
    let mut chain = chain_of(|| Box::new(Forks), || Box::new(Passes));
    let first = chain.bottom().unwrap();
    let Some(Action::Connect(other, _)) = chain.poll_action() else { panic!("no connect") };
    assert_eq!((chain.transport(first), chain.transport(other)), (None, trickles));
    let mut chain = chain_of(|| Box::new(Forks), || Box::new(OverTcp));
    let Some(Action::Connect(other, _)) = chain.poll_action() else { panic!("no connect") };
    assert_eq!(chain.transport(other), tcp);
}

#[test]
fn events_of_a_closed_connection_are_ignored() {
    let mut world = World::new(&["count", "crypt:key=1.key"], LIMIT);
    let (now, bottom) = (world.now, world.chain.bottom().unwrap());
    world.chain.accepted(now);
    world.chain.avail(now, bottom, "this is no handshake".into());
    let actions = actions(&mut world.chain);
    assert!(actions.ends_with(&[Action::Close(bottom), Action::Failed(Failure::Denied)]));
    world.chain.connected(now, bottom, Ok(()));
    assert!(!world.chain.avail(now, bottom, "more".into()));
    world.chain.sent(now, bottom, 7);
    world.chain.finished(now, bottom);
    world.chain.failed(now, bottom, Failure::TimedOut);
    assert!(world.chain.outgoing(bottom).is_empty());
    assert_eq!(world.chain.poll_action(), None);
}
