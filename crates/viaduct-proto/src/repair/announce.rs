//! Which of the packets that it covers a repair names.
//!
//! A recipe of r names suits r = 8 (the paper's way). A block or window of hundreds of packets
//! would spend more on names than on repair, so each of its repairs names a share, such that every
//! packet is named a few times by repairs that no one burst swallows together.

use crate::fec::{Code, Cover, Row};

/// How often each packet of a block or window is named.
const COPIES: usize = 3;
/// Up to this many packets a repair names them all.
const WHOLE: usize = 16;

/// How many names a repair of `code` carries at most.
pub fn names_per_repair(code: &Code) -> usize {
    let spread = |packets: usize, repairs: usize| {
        if packets <= WHOLE { packets } else { (packets * COPIES).div_ceil(repairs).min(packets) }
    };
    match *code {
        Code::Layered(ref layered) => usize::from(layered.r),
        Code::ReedSolomon(block) => spread(usize::from(block.r), usize::from(block.c)),
        Code::Window(code) => {
            let window = usize::from(code.window);
            let fresh = usize::from(code.packets).div_ceil(usize::from(code.repairs).max(1));
            (fresh * COPIES).clamp(1, window).max(WHOLE.min(window))
        }
    }
}

/// How many packets back a repair of `code` may reach.
pub(super) fn span(code: &Code) -> usize {
    match code {
        Code::Layered(layered) => {
            let longest = layered.interleaves.iter().copied().max().unwrap_or(1);
            // A delayed repair leaves one interleave later.
            (usize::from(layered.r) + 1) * usize::from(longest)
        }
        Code::ReedSolomon(block) => usize::from(block.r) * usize::from(block.interleave),
        Code::Window(code) => usize::from(code.window),
    }
}

/// The positions that a repair names, of which there are at most `most`.
pub(super) fn positions(row: Row, cover: Cover, most: usize) -> impl ExactSizeIterator<Item = u8> {
    let count = usize::from(cover.count);
    let all = matches!(row, Row::Xor { .. }) || count <= WHOLE;
    let named = if all { count } else { most.min(count) };
    (0..named).map(move |i| {
        let position = match row {
            _ if all => i,
            Row::Xor { .. } => i,
            Row::ReedSolomon { row } => (usize::from(row) * most + i) % count,
            // Equal shares of the newest, of those a third of the window ago, and two thirds ago.
            Row::Window { .. } => {
                let (group, within) = (i % COPIES, i / COPIES);
                (count - 1).saturating_sub(group * count / COPIES + within)
            }
        };
        u8::try_from(position).unwrap_or(u8::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::{reed_solomon, window};

    #[test]
    fn every_packet_of_a_block_is_named_by_three_repairs_far_apart() {
        let code = Code::ReedSolomon(reed_solomon::Parameters { r: 190, c: 57, interleave: 1 });
        let most = names_per_repair(&code);
        let cover = Cover { first: 1, stride: 1, count: 190 };
        let mut named = vec![Vec::new(); 190];
        for row in 0..57 {
            for position in positions(Row::ReedSolomon { row }, cover, most) {
                named[usize::from(position)].push(row);
            }
        }
        assert!(named.iter().all(|rows| rows.len() >= 3), "{named:?}");
        assert!(named.iter().all(|rows| rows[1] - rows[0] >= 15));
    }

    #[test]
    fn every_packet_of_a_window_is_named_at_three_ages() {
        let code = Code::Window(window::Parameters { window: 240, packets: 10, repairs: 3 });
        let most = names_per_repair(&code);
        let mut named = vec![0; 2_000];
        for end in (300..1_999).step_by(3) {
            let cover = Cover { first: end - 239, stride: 1, count: 240 };
            for position in positions(Row::Window { seed: 0 }, cover, most) {
                named[(cover.first + u64::from(position)) as usize] += 1;
            }
        }
        assert!(named[400..1_500].iter().all(|&n| n >= 3), "{:?}", &named[400..430]);
    }
}
