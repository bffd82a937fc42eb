//! Marker segments of a file (ITU-T T.81, annex B).

use super::bits::unstuffed;
use super::huffman::Table;
use super::{Jpeg, Wrong, part};

/// Maximum number of coding units of a picture: enough for 65,500 by 65,500 pixels, the largest
/// picture that libjpeg reads, with one block in each unit.
const MAX_UNITS: usize = 1 << 26;
/// Maximum number of blocks in a unit (B.2.3).
const MAX_BLOCKS: usize = 10;

#[derive(Debug, Default)]
struct Frame {
    height: usize,
    width: usize,
    /// Components: the number of each, and its blocks in a unit, horizontally and vertically.
    components: Vec<(u8, usize, usize)>,
}

#[derive(Debug, Default)]
struct Reading {
    frame: Option<Frame>,
    tables: [[Option<Table>; 4]; 2],
}

pub(super) fn parse(file: &[u8]) -> Result<Jpeg, Wrong> {
    if file.get(..2) != Some(&[0xff, 0xd8]) {
        return Err(Wrong::NoJpeg);
    }
    let (mut at, mut reading) = (2, Reading::default());
    loop {
        // Any number of fill bytes `ff` may precede a marker.
        while part(file, at..at + 2)? == [0xff, 0xff] {
            at += 1;
        }
        let &[0xff, marker, high, low] = part(file, at..at + 4)? else { return Err(Wrong::Cut) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        let body = part(file, at + 4..at + 2 + length.max(2))?;
        at += 2 + length.max(2);
        match marker {
            0xc0 | 0xc1 => reading.frame = Some(frame(body)?),
            0xc4 => reading.tables(body)?,
            0xc2 => return Err(Wrong::Kind("a progressive file")),
            0xc3 | 0xc5..=0xcf => return Err(Wrong::Kind("this coding")),
            0xdd if body != [0, 0] => return Err(Wrong::Kind("a file with restart intervals")),
            0xd9 => return Err(Wrong::Cut),
            0xda => return reading.scan(file, at, body),
            _ => {}
        }
    }
}

fn frame(body: &[u8]) -> Result<Frame, Wrong> {
    let &[bits, h1, h2, w1, w2, count, ref rest @ ..] = body else { return Err(Wrong::Cut) };
    if bits != 8 {
        return Err(Wrong::Kind("a file without 8 bits a sample"));
    }
    let (components, []) = rest.as_chunks::<3>() else { return Err(Wrong::Cut) };
    let (height, width) = (u16::from_be_bytes([h1, h2]), u16::from_be_bytes([w1, w2]));
    let sane = components.len() == usize::from(count) && height > 0 && width > 0;
    let components = components.iter().map(|&[number, sampling, _]| {
        let (across, down) = (usize::from(sampling >> 4), usize::from(sampling & 15));
        let sane = (1..=4).contains(&across) && (1..=4).contains(&down);
        sane.then_some((number, across, down)).ok_or(Wrong::Cut)
    });
    let components = components.collect::<Result<Vec<_>, _>>()?;
    let (height, width) = (height.into(), width.into());
    if sane { Ok(Frame { height, width, components }) } else { Err(Wrong::Cut) }
}

impl Reading {
    fn tables(&mut self, mut body: &[u8]) -> Result<(), Wrong> {
        while let Some((&head, rest)) = body.split_first() {
            let (class, number) = (usize::from(head >> 4), usize::from(head & 15));
            let (counts, symbols) = rest.split_first_chunk::<16>().ok_or(Wrong::Cut)?;
            let total: usize = counts.iter().map(|&count| usize::from(count)).sum();
            let symbols = part(symbols, 0..total)?;
            let table = Table::new(counts, symbols)?;
            *self.tables.get_mut(class).and_then(|of| of.get_mut(number)).ok_or(Wrong::Table)? =
                Some(table);
            body = &rest[16 + total..];
        }
        Ok(())
    }

    /// Reads the scan, whose header ends at `at`.
    fn scan(self, file: &[u8], at: usize, body: &[u8]) -> Result<Jpeg, Wrong> {
        let frame = self.frame.ok_or(Wrong::Cut)?;
        let (&count, rest) = body.split_first().ok_or(Wrong::Cut)?;
        if usize::from(count) != frame.components.len() {
            return Err(Wrong::Kind("a file of several scans"));
        }
        let mut blocks = Vec::new();
        for n in 0..frame.components.len() {
            let &[number, tables] = part(rest, 2 * n..2 * n + 2)? else { return Err(Wrong::Cut) };
            let (own, across, down) = frame.components[n];
            if number != own {
                return Err(Wrong::Kind("a file whose scan reorders the components"));
            }
            let tables = (usize::from(tables >> 4), usize::from(tables & 15));
            let there = |class: usize, number: usize| {
                self.tables[class].get(number).is_some_and(Option::is_some)
            };
            if !there(0, tables.0) || !there(1, tables.1) {
                return Err(Wrong::Table);
            }
            // A single component is not interleaved: its units are blocks.
            let each = if count == 1 { 1 } else { across * down };
            blocks.extend(std::iter::repeat_n(tables, each));
        }
        let most = |of: fn(&(u8, usize, usize)) -> usize| {
            let most = frame.components.iter().map(of).max().unwrap_or(1);
            if count == 1 { 8 } else { 8 * most }
        };
        let across = frame.width.div_ceil(most(|component| component.1));
        let units = across * frame.height.div_ceil(most(|component| component.2));
        if blocks.is_empty() || blocks.len() > MAX_BLOCKS || units > MAX_UNITS {
            return Err(Wrong::Kind("a picture of this size"));
        }
        let (scan, scan_len) = unstuffed(&file[at..]);
        let (head, tail) = (file[..at].to_vec(), file[at + scan_len..].to_vec());
        if !tail.starts_with(&[0xff, 0xd9]) {
            return Err(if tail.is_empty() {
                Wrong::Cut
            } else {
                Wrong::Kind("a file of several scans")
            });
        }
        Ok(Jpeg { head, tail, scan, scan_len, blocks, units, tables: self.tables })
    }
}
