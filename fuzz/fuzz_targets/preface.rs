//! Prefaces of clients, in pieces as they arrive. The exchange does not depend on how the bytes are
//! cut, waits for at most the longest preface, and asks for a connection only from clients that
//! give the password. Reports of hops that parse are emitted unchanged.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_proto::placement::report::{MAX_LEN, Report};
use viaduct_proto::split::preface::{LONGEST, Preface, Protocols, Secret, Step};
use viaduct_proto::split::socks::Credentials;

const NAME: &[u8] = b"user";
const PASSWORD: &[u8] = b"word";
/// `user:word` in base64.
const BASIC: &[u8] = b"dXNlcjp3b3Jk";

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    protocols: [bool; 3],
    has_secret: bool,
    /// Lengths of the first pieces; the rest arrives in one piece.
    pieces: [u8; 6],
    bytes: &'a [u8],
}

impl Input<'_> {
    fn preface(&self) -> Preface {
        let [proxy, socks, connect] = self.protocols;
        let secret = Credentials { name: NAME.to_vec(), password: PASSWORD.to_vec() };
        let secret = Secret(self.has_secret.then_some(secret));
        Preface::new(Protocols { option: false, proxy, socks, connect }, secret)
    }
}

/// Steps other than waits, and the bytes that are left after the last step.
fn steps(mut preface: Preface, pieces: &[&[u8]]) -> (Vec<Step>, Vec<u8>) {
    let (mut steps, mut waiting, mut is_over) = (Vec::new(), Vec::new(), false);
    for piece in pieces {
        waiting.extend_from_slice(piece);
        while !is_over {
            let before = waiting.len();
            let step = preface.handle(&mut waiting);
            assert!(waiting.len() <= before);
            match step {
                Step::Wait => {
                    assert!(waiting.len() < LONGEST, "{} bytes wait", waiting.len());
                    break;
                }
                Step::Say(_) | Step::Deny(_) => assert!(waiting.len() < before, "no progress"),
                _ => is_over = true,
            }
            steps.push(step);
        }
    }
    (steps, waiting)
}

fuzz_target!(|input: Input| {
    if let Some(report) = Report::parse(input.bytes) {
        assert!(input.bytes.len() <= MAX_LEN);
        assert_eq!(report.emit(), input.bytes);
    }
    let (mut pieces, mut rest) = (Vec::new(), input.bytes);
    for length in input.pieces {
        let (piece, after) = rest.split_at(rest.len().min(length.into()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    let whole = steps(input.preface(), &[input.bytes]);
    let in_pieces = steps(input.preface(), &pieces);
    // The last reply to an invalid preface may depend on where its pieces end.
    let last = whole.0.last();
    if !matches!(last, Some(Step::Refuse(..))) {
        assert_eq!(whole, in_pieces);
    }
    let [_, socks, connect] = input.protocols;
    if input.has_secret
        && let Some(Step::Connect { source: None, .. }) = last
    {
        let has = |part: &[u8]| input.bytes.windows(part.len()).any(|window| window == part);
        assert!(socks && has(NAME) && has(PASSWORD) || connect && has(BASIC));
    }
});
