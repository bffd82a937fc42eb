use super::*;

fn frames() -> Vec<(u32, Frame<'static>)> {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let open = |to: Address, source| Frame::Syn(Some(Box::new(Opening { to, source })));
    let hello = Hello { instance: 9, link: 3, tokens: 1 << 40, least_window: 4096, streams: 100 };
    vec![
        (0, Frame::Hello(hello)),
        (0, Frame::Grant(1 << 33)),
        (0, Frame::Gone(2)),
        (0, Frame::Ping(u64::MAX)),
        (0, Frame::Pong(5)),
        (0, Frame::Leave),
        (1, open(Address::Ip(at("10.0.0.1:80")), Some(at("[fd00::1]:9")))),
        (3, open(Address::Ip(at("[fd00::2]:443")), None)),
        (5, open(Address::Name("a".repeat(253), 8080), Some(at("[fd00::1]:9")))),
        (1, Frame::Syn(None)),
        (1, Frame::Data(b"some bytes")),
        (u32::MAX, Frame::Fin),
        (1, Frame::FinAck),
        (1, Frame::Rst(Failure::Denied)),
        (1, Frame::Ack(123_456)),
    ]
}

#[test]
fn frames_are_read_as_written_in_pieces_of_any_size() {
    let mut bytes = Vec::new();
    frames().iter().for_each(|(stream, frame)| frame.emit(*stream, &mut bytes));
    for cut in [1, 2, 6, 8, 100, bytes.len()] {
        let (mut parser, mut read, mut data) = (Parser::default(), Vec::new(), Vec::new());
        for mut piece in bytes.chunks(cut) {
            while let Some((stream, frame)) = parser.next(&mut piece).unwrap() {
                match frame {
                    Frame::Data(bytes) => data.extend_from_slice(bytes),
                    frame => read.push((stream, format!("{frame:?}"))),
                }
            }
        }
        let all = frames().into_iter().filter(|(_, f)| !matches!(f, Frame::Data(_)));
        let expected: Vec<_> = all.map(|(s, f)| (s, format!("{f:?}"))).collect();
        assert_eq!((read, &data[..]), (expected, &b"some bytes"[..]), "in pieces of {cut}");
        assert!(parser.is_between());
    }
}

#[test]
fn invalid_frames_are_refused_with_the_reason() {
    let parse = |bytes: &[u8]| Parser::default().next(&mut &*bytes).map(|_| ());
    assert_eq!(parse(&[99, 0, 0, 0, 0, 0, 0]), Err(Malformed::Kind(99)));
    let too_long = Malformed::Length { kind: DATA, length: 16_385 };
    assert_eq!(parse(&[DATA, 0, 0, 0, 1, 0x40, 1]), Err(too_long));
    assert_eq!(parse(&[PING, 0, 0, 0, 1, 0, 8]), Err(Malformed::Stream { kind: PING, stream: 1 }));
    assert_eq!(parse(&[RST, 0, 0, 0, 1, 0, 1, 77]), Err(Malformed::Reason(77)));
    assert_eq!(parse(&[SYN, 0, 0, 0, 1, 0, 1, NONE]), Err(Malformed::Address));
    let mut hello = Vec::new();
    frames()[0].1.emit(0, &mut hello);
    assert_eq!(peek_hello(&hello[..20]), Ok(None));
    assert_eq!(peek_hello(&hello).unwrap().unwrap().link, 3);
    hello[HEAD] = VERSION + 1;
    assert_eq!(peek_hello(&hello), Err(Malformed::Version(VERSION + 1)));
}
