//! The sender's half of the buffer allocation: division of the tokens that the peer has granted
//! (slides 16 to 20).

#[cfg(test)]
mod tests;

use slab::Slab;

/// Tokens of one peer, shared by all streams of all links to it: free bytes of the peer's buffer.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    pub(super) total: u64,
    /// Least window: bytes that a stream may have outstanding in addition, without tokens.
    least_window: u64,
    accounts: Slab<Account>,
    /// Spent tokens: bytes outstanding beyond the least window of each stream.
    spent: u64,
    /// Tokens spent on broken links, by link, until the peer reports their bytes gone.
    stranded: Vec<(u32, u64)>,
    pub(super) active: u64,
    /// Number of active accounts with less than [`Tokens::share`] outstanding; `None` if they must
    /// be counted again.
    due: Option<u64>,
    /// Counter that rises when a stream that got no tokens may get some now.
    pub(super) changes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Bytes sent and not yet acknowledged.
    outstanding: u64,
    /// True if bytes wait to be sent.
    queued: bool,
}

pub(super) type AccountId = usize;

/// Error: an acknowledgement of more bytes than were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverAcknowledged;

impl Account {
    fn is_active(self) -> bool {
        self.queued || self.outstanding > 0
    }
}

impl Tokens {
    /// Sets the total and the least window that the peer has announced on a new link.
    pub(super) fn hello(&mut self, total: u64, least_window: u32) {
        self.least_window = u64::from(least_window);
        // The number of spent tokens depends on the least window, which a restart of the peer may
        // have changed.
        let spent =
            |(_, account): (usize, &Account)| account.outstanding.saturating_sub(self.least_window);
        self.spent = self.accounts.iter().map(spent).sum();
        self.set_total(total);
    }

    /// Resets the counts after a restart of the peer, which now holds no bytes and has granted
    /// no tokens.
    pub(super) fn restart(&mut self) {
        self.stranded.clear();
        self.total = 0;
        self.changes += 1;
    }

    pub(super) fn open(&mut self) -> AccountId {
        self.accounts.insert(Account::default())
    }

    /// Closes an account, and frees the tokens outstanding on it.
    pub(super) fn close(&mut self, id: AccountId) {
        self.update(id, |account| *account = Account::default());
        self.accounts.remove(id);
        self.changes += 1;
    }

    /// Closes a broken link's account; its tokens remain spent until [`Tokens::release`].
    pub(super) fn strand(&mut self, id: AccountId, link: u32) {
        let spent = self.accounts[id].outstanding.saturating_sub(self.least_window);
        self.close(id);
        match self.stranded.iter_mut().find(|(number, _)| *number == link) {
            Some((_, stranded)) => *stranded += spent,
            None if spent > 0 => self.stranded.push((link, spent)),
            None => {}
        }
    }

    /// Frees the stranded tokens of `link`, because the peer no longer holds bytes of it.
    pub(super) fn release(&mut self, link: u32) {
        self.stranded.retain(|(number, _)| *number != link);
        self.changes += 1;
    }

    /// Sets whether bytes wait to be sent.
    pub(super) fn set_queued(&mut self, id: AccountId, queued: bool) {
        if self.accounts[id].queued != queued {
            self.update(id, |account| account.queued = queued);
        }
    }

    /// Number of the `wanted` bytes (at least 1) that may be sent now: min(FairShare,
    /// ShareRemainder, MSS), or the unused part of the least window if that is more. 0 if this
    /// number is very small and will increase with the next acknowledgement.
    pub(super) fn allowance(&mut self, id: AccountId, wanted: usize, mss: usize) -> usize {
        let outstanding = self.accounts[id].outstanding;
        let (share, left) = (self.share(), self.remaining());
        let fair = share.saturating_sub(outstanding);
        let remainder = (left / (2 * self.due().max(1))).max(1).min(left);
        let least_window = self.least_window.saturating_sub(outstanding);
        let most = wanted.min(mss) as u64;
        let least = if outstanding == 0 { 1 } else { most.min(share / 4).max(1) };
        let may = fair.min(remainder).max(least_window).min(most);
        if may < least { 0 } else { may as usize }
    }

    /// Notes that `count` bytes were sent.
    pub(super) fn spend(&mut self, id: AccountId, count: usize) {
        self.update(id, |account| account.outstanding += count as u64);
    }

    /// Notes that `count` bytes were acknowledged.
    pub(super) fn free(&mut self, id: AccountId, count: u32) -> Result<(), OverAcknowledged> {
        let count = u64::from(count);
        if self.accounts[id].outstanding < count {
            return Err(OverAcknowledged);
        }
        self.update(id, |account| account.outstanding -= count);
        self.changes += 1;
        Ok(())
    }

    /// Bytes of one stream sent and not yet acknowledged.
    pub(super) fn outstanding(&self, id: AccountId) -> u64 {
        self.accounts[id].outstanding
    }

    /// Share of a stream with nothing outstanding: half of all tokens, divided by the number of
    /// active streams.
    pub(super) fn share(&self) -> u64 {
        self.total / (2 * self.active.max(1))
    }

    /// Tokens that no stream has spent.
    pub(super) fn remaining(&self) -> u64 {
        self.total.saturating_sub(self.spent + self.stranded())
    }

    pub(super) fn stranded(&self) -> u64 {
        self.stranded.iter().map(|(_, tokens)| tokens).sum()
    }

    /// Compares the counts with a recount.
    #[cfg(any(test, fuzzing))]
    pub(super) fn check(&mut self) {
        let spent = |(_, a): (usize, &Account)| a.outstanding.saturating_sub(self.least_window);
        assert_eq!(self.accounts.iter().map(spent).sum::<u64>(), self.spent, "spent");
        let active = self.accounts.iter().filter(|(_, a)| a.is_active()).count();
        assert_eq!(active as u64, self.active, "active");
        let counted = self.count_due();
        assert_eq!(self.due(), counted, "due");
        // More may be spent than granted if a later HELLO has a smaller least window.
        let used = self.spent + self.stranded();
        assert_eq!(used + self.remaining(), self.total.max(used), "tokens are conserved");
    }

    /// Raises the total. Granted tokens are not taken back, so if totals on several links overtake
    /// each other, the highest is the newest.
    pub(super) fn set_total(&mut self, total: u64) {
        self.total = self.total.max(total);
        self.due = None;
        self.changes += 1;
    }

    /// Changes an account and all counts that depend on it.
    fn update(&mut self, id: AccountId, change: impl FnOnce(&mut Account)) {
        let account = &mut self.accounts[id];
        let before = *account;
        change(account);
        let after = *account;
        let spent = |account: Account| account.outstanding.saturating_sub(self.least_window);
        self.spent = self.spent + spent(after) - spent(before);
        if before.is_active() != after.is_active() {
            self.active =
                self.active + u64::from(after.is_active()) - u64::from(before.is_active());
            self.due = None;
            self.changes += u64::from(before.is_active());
        }
        let share = self.share();
        let is_due =
            |account: Account| u64::from(account.is_active() && account.outstanding < share);
        self.due = self.due.map(|due| due + is_due(after) - is_due(before));
    }

    fn due(&mut self) -> u64 {
        let due = self.due.unwrap_or_else(|| self.count_due());
        self.due = Some(due);
        due
    }

    fn count_due(&self) -> u64 {
        let share = self.share();
        let due =
            |(_, account): &(usize, &Account)| account.is_active() && account.outstanding < share;
        self.accounts.iter().filter(due).count() as u64
    }
}
