//! Numbers of a link's streams. Streams that the dialling end opens have odd numbers, those of the
//! other end even ones.

/// Numbers that were used, and how many are in use.
#[derive(Debug)]
pub(super) struct Numbers {
    /// Open streams with an even number, and with an odd one.
    open: [u32; 2],
    /// Number of the next stream that this end opens.
    next: u32,
    /// Highest number of a stream that the peer has opened.
    highest: u32,
}

impl Numbers {
    /// Numbers of a link that this end has dialled or accepted.
    pub(super) fn new(dialled: bool) -> Numbers {
        Numbers { open: [0; 2], next: if dialled { 1 } else { 2 }, highest: 0 }
    }

    /// Takes the number of a stream that this end opens.
    pub(super) fn take(&mut self) -> u32 {
        self.next += 2;
        self.next - 2
    }

    /// Returns whether streams of this number are opened by this end.
    pub(super) fn is_own(&self, number: u32) -> bool {
        number % 2 == self.next % 2
    }

    /// Returns whether there may have been a stream of this number.
    pub(super) fn was_used(&self, number: u32) -> bool {
        if self.is_own(number) { number < self.next } else { !self.is_beyond(number) }
    }

    /// Returns whether the number is above those of all streams that the peer has opened.
    pub(super) fn is_beyond(&self, number: u32) -> bool {
        number > self.highest
    }

    /// Notes that the peer opens a stream.
    pub(super) fn taken_by_peer(&mut self, number: u32) {
        self.highest = self.highest.max(number);
    }

    pub(super) fn opened(&mut self, number: u32) {
        self.open[number as usize % 2] += 1;
    }

    /// Notes that a stream is over.
    pub(super) fn closed(&mut self, number: u32) {
        self.open[number as usize % 2] -= 1;
    }

    /// Number of open streams that were opened by the same end as stream `number`.
    pub(super) fn open_beside(&self, number: u32) -> u32 {
        self.open[number as usize % 2]
    }

    /// Returns whether no number is left for a stream that this end opens.
    pub(super) fn are_used_up(&self) -> bool {
        self.next > u32::MAX - 2
    }

    /// Skips all numbers for streams that this end opens, except the last one.
    #[cfg(test)]
    pub(super) fn skip(&mut self) {
        self.next = u32::MAX - 3 + self.next % 2;
    }

    /// Number of streams that this end may still open, of the `most` that the peer allows.
    pub(super) fn vacant(&self, most: u32) -> u32 {
        let most = if self.are_used_up() { 0 } else { most };
        most.saturating_sub(self.open_beside(self.next))
    }
}
