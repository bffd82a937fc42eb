//! Transport of flows from the end of a chain to their far ends: the kernel's TCP, or the transport
//! with which the chain ends, as in `+compress +trickles:way=udp`.

use anyhow::{Result, anyhow, bail};
use viaduct_proto::flow::{About, HandlerSpec};

use crate::engine::outbound::OutboundSpec;
use crate::engine::trickles::{Early, PacketFormats, TricklesTarget};

const TRICKLES: &str = "trickles";

/// Returns the description of the transport and of its settings.
pub fn about() -> About {
    let line =
        "uses Trickles, for which servers keep no state; TCP where the server has no Trickles";
    About::new(TRICKLES, line)
        .setting(
            "way",
            "auto|tcp|udp",
            "format of packets: TCP's, which requires privilege, or UDP; auto: either",
        )
        .setting(
            "key",
            "KEY",
            "encrypt everything to the server with this public key; other servers are refused, \
                and TCP is not used",
        )
        .setting(
            "early",
            "never|known|always",
            "send the program's first bytes in the first packet, before the server has answered",
        )
}

/// Splits the transport off the end of a chain. Errors: the transport is not the last in the chain,
/// or does not have these settings.
pub fn split(chain: &[HandlerSpec]) -> Result<(&[HandlerSpec], OutboundSpec)> {
    let transport = |spec: &HandlerSpec| spec.name() == TRICKLES;
    let (handlers, outbound) = match chain {
        [handlers @ .., last] if transport(last) => {
            let expected = "auto, tcp or udp";
            let target = last.read(&about(), |given| {
                let formats: Option<PacketFormats> =
                    given.take("way", expected, |text| text.parse().ok())?;
                let key = given.take("key", "64 hexadecimal digits", |text| text.parse().ok())?;
                let early =
                    given.take("early", "never, known or always", |text| text.parse().ok())?;
                let early = early.unwrap_or(Early::Known);
                Ok(TricklesTarget { formats: formats.unwrap_or_default(), key, early })
            });
            (handlers, OutboundSpec::Trickles(target.map_err(|what| anyhow!(what))?))
        }
        handlers => (handlers, OutboundSpec::Direct),
    };
    if handlers.iter().any(transport) {
        bail!(
            "+{TRICKLES} is not a handler but the transport at the end of a chain; put it last, \
                and once"
        );
    }
    Ok((handlers, outbound))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_text(text: &str) -> Result<(usize, OutboundSpec), String> {
        let chain: Vec<HandlerSpec> = text.split(' ').map(|spec| spec.parse().unwrap()).collect();
        let (handlers, outbound) = split(&chain).map_err(|error| error.to_string())?;
        Ok((handlers.len(), outbound))
    }

    #[test]
    fn a_transport_is_the_last_in_a_chain() {
        let by = |formats| {
            OutboundSpec::Trickles(TricklesTarget { formats, key: None, early: Early::Known })
        };
        assert_eq!(split_text("count shape:rate=2M"), Ok((2, OutboundSpec::Direct)));
        assert_eq!(split_text("+count +trickles"), Ok((1, by(PacketFormats::Auto))));
        assert_eq!(split_text("+trickles:way=udp"), Ok((0, by(PacketFormats::Udp))));
        for (text, expected) in [
            ("trickles count", "put it last"),
            ("trickles trickles", "and once"),
            ("trickles:way=quic", "way=quic: auto, tcp or udp is expected"),
            ("trickles:early=soon", "early=soon: never, known or always is expected"),
            ("trickles:key=mine", "key=mine: 64 hexadecimal digits is expected"),
            ("trickles:rate=2M", "no setting \"rate\""),
        ] {
            let error = split_text(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
