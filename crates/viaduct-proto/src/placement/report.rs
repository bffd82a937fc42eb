//! Report of a hop about itself, its answer to a query: its load, and its round trips to the
//! networks that the query names, in their order.
//!
//! ```text
//!   0, 1   5668   "Vh"
//!   2         3   a report
//!   3, 4          load, in 1/65535 of the capacity
//!   5..           for each network: round trip in microseconds (4; all ones: unknown)
//! ```

use crate::reader::Reader;

/// Maximum number of networks in a query.
pub const MAX_NETWORKS: usize = 128;
/// Maximum length of a report in bytes.
pub const MAX_LEN: usize = HEAD.len() + 2 + 4 * MAX_NETWORKS;

const HEAD: [u8; 3] = *b"Vh\x03";
const UNKNOWN: u32 = u32::MAX;

/// Report of a hop.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Load: 1 at the capacity.
    pub load: f64,
    /// Round trips in milliseconds; `None` where unknown.
    pub rtts_ms: Vec<Option<f64>>,
}

impl Report {
    /// Serializes the report.
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = HEAD.to_vec();
        bytes.extend(((self.load.clamp(0.0, 1.0) * 65_535.0).round() as u16).to_be_bytes());
        for rtt_ms in &self.rtts_ms {
            let micros = rtt_ms.map_or(UNKNOWN, |ms| ((ms * 1e3).round() as u32).min(UNKNOWN - 1));
            bytes.extend(micros.to_be_bytes());
        }
        bytes
    }

    /// Parses a report; `None` if it is invalid or too long.
    pub fn parse(bytes: &[u8]) -> Option<Report> {
        let mut rest = Reader(bytes);
        if bytes.len() > MAX_LEN || rest.array::<3>()? != HEAD {
            return None;
        }
        let load = f64::from(rest.u16()?) / 65_535.0;
        if rest.0.len() % 4 != 0 {
            return None;
        }
        let next = || rest.u32().map(|micros| (micros != UNKNOWN).then(|| f64::from(micros) / 1e3));
        Some(Report { load, rtts_ms: std::iter::from_fn(next).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_bytes_are_those_of_the_drawing() {
        let report = Report { load: 1.0, rtts_ms: vec![Some(1.5), None] };
        let bytes = [b'V', b'h', 3, 255, 255, 0, 0, 5, 220, 255, 255, 255, 255];
        assert_eq!(report.emit(), bytes);
        assert_eq!(Report::parse(&bytes), Some(report));
    }

    proptest! {
        #[test]
        fn bytes_of_any_kind_are_refused_or_emitted_again(
            bytes in prop::collection::vec(any::<u8>(), 0..40),
        ) {
            let bytes = [&HEAD[..], &bytes].concat();
            if let Some(report) = Report::parse(&bytes) {
                prop_assert_eq!(report.emit(), bytes);
            }
        }

        #[test]
        fn a_report_has_a_maximum_length(networks in 0..200_usize) {
            let report = Report { load: 0.0, rtts_ms: vec![None; networks] };
            let parsed = Report::parse(&report.emit());
            prop_assert_eq!(parsed.is_some(), networks <= MAX_NETWORKS);
        }
    }
}
