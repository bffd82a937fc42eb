//! Parameters r, c and I of a layered code.

use std::fmt;

use crate::fec::check::{Error, Warning};

/// Parameters of a layered code, written (r,c) I=(…) as in the paper (Maelstrom 4.3). c is the
/// number of interleaves.
///
/// ```
/// use viaduct_proto::fec::layered::Parameters;
/// let parameters = Parameters::new(8, &[1, 20, 40]);
/// assert_eq!(parameters.to_string(), "(8,3) I=(1,20,40)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// Packets in a repair: 1 to 255.
    pub r: u8,
    /// Interleaves of the 1 to 255 layers; each is 1 or more.
    pub interleaves: Vec<u16>,
    /// Delays a repair until the next packet is added to its bin (Maelstrom 4.3.1). This tolerates
    /// bursts as long as the interleave, but delays recovery.
    pub delay_xors: bool,
}

impl Parameters {
    /// Creates parameters with these interleaves, whose repairs are not delayed.
    pub fn new(r: u8, interleaves: &[u16]) -> Self {
        Parameters { r, interleaves: interleaves.to_vec(), delay_xors: false }
    }

    /// Returns the parameters with delayed XORs.
    pub fn delayed(self) -> Self {
        Parameters { delay_xors: true, ..self }
    }

    /// Repair bytes for each data byte: c / r.
    pub fn overhead(&self) -> f64 {
        self.interleaves.len() as f64 / f64::from(self.r)
    }

    /// Refuses invalid parameters, and warns of interleaves that waste recovery power, by the rule
    /// of thumb of Maelstrom 4.4. Errors: if r or an interleave is 0, or if the number of
    /// interleaves is 0 or more than 255.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        match self.interleaves.len() {
            _ if self.r == 0 => return Err(Error::NoSources),
            0 => return Err(Error::NoRepairs),
            c if c > 255 => return Err(Error::TooManyLayers(c)),
            _ if self.interleaves.contains(&0) => return Err(Error::NoInterleave),
            _ => {}
        }
        Ok(self.warnings())
    }

    fn warnings(&self) -> Vec<Warning> {
        let (mut sorted, r) = (self.interleaves.clone(), self.r);
        sorted.sort_unstable();
        let mut warnings = Warning::if_dearer(sorted.len() as u32, u32::from(r));
        for (n, &larger) in sorted.iter().enumerate() {
            let smallest = sorted[0];
            if n > 0 && larger <= u16::from(r) {
                warnings.push(Warning::NotAboveR { smaller: smallest, larger, r });
            }
            for &smaller in &sorted[..n] {
                let (lcm, reach) = (lcm(smaller, larger), u64::from(r) * u64::from(smaller));
                if lcm <= reach {
                    warnings.push(Warning::Meet { smaller, larger, lcm, reach });
                }
            }
        }
        warnings
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interleaves: Vec<_> = self.interleaves.iter().map(u16::to_string).collect();
        write!(f, "({},{}) I=({})", self.r, interleaves.len(), interleaves.join(","))?;
        if self.delay_xors { f.write_str(" delayed") } else { Ok(()) }
    }
}

/// Least common multiple; both numbers are above 0.
fn lcm(a: u16, b: u16) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    u64::from(a) * u64::from(b) / u64::from(x.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_in_the_paper() {
        assert_eq!(Parameters::new(7, &[1]).to_string(), "(7,1) I=(1)");
        let delayed = Parameters::new(10, &[1, 61, 127]).delayed();
        assert_eq!(delayed.to_string(), "(10,3) I=(1,61,127) delayed");
    }

    #[test]
    fn the_papers_interleaves_cause_warnings_but_no_errors() {
        let warnings = Parameters::new(8, &[1, 20, 40]).check().unwrap();
        let meet = Warning::Meet { smaller: 20, larger: 40, lcm: 40, reach: 160 };
        assert_eq!(warnings, [meet]);
        assert!(
            warnings[0].to_string().contains("meet every 40 packets, not more than r * 20 = 160")
        );
        assert_eq!(Parameters::new(8, &[1, 19, 41]).check().unwrap(), []);
        assert_eq!(Parameters::new(8, &[1, 11, 19]).check().unwrap(), []);
    }

    #[test]
    fn an_interleave_not_above_r_causes_a_warning() {
        let warnings = Parameters::new(8, &[1, 8]).check().unwrap();
        let low = Warning::NotAboveR { smaller: 1, larger: 8, r: 8 };
        assert!(warnings.contains(&low), "{warnings:?}");
        let at_the_bound = Parameters::new(8, &[1, 9]).check().unwrap();
        assert_eq!(at_the_bound, []);
    }

    #[test]
    fn invalid_parameters_are_refused() {
        assert_eq!(Parameters::new(0, &[1]).check(), Err(Error::NoSources));
        assert_eq!(Parameters::new(8, &[]).check(), Err(Error::NoRepairs));
        assert_eq!(Parameters::new(8, &[1, 0]).check(), Err(Error::NoInterleave));
        assert_eq!(Parameters::new(8, &[1; 256]).check(), Err(Error::TooManyLayers(256)));
    }
}
