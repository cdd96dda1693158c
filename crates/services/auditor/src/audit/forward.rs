//! Sums brought forward: of reserves and transfers with long histories, an increment reads the sums of the rows before
//! instead of the rows. Otherwise a reserve with a million withdrawals would be read again with each further one.
//!
//! The sums are those of the whole account, as the last increment or whole audit left it. Rows of the account that an
//! increment does read (those that change, and those that it needs itself) are in the sums, too: what is
//! brought forward is the sums less these rows, before the change, and it is added to what they give after it.

use std::collections::{HashMap, HashSet};

use batzen_crypto::Wtid;
use batzen_store::Result;
use batzen_tables::exchange::ReservePub;

use crate::audit::books::{Books, Receiver, ReserveBook, TransferBook};
use crate::audit::scope::Scope;

/// Number of rows that a history may have without being long.
pub const SHORT_HISTORY_ROWS: i64 = 256;

/// The sums of a reserve's account, in units of 10⁻⁸.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReserveSums {
    /// Rows that added to them.
    pub(crate) entries: i64,
    /// The sum that came in.
    pub(crate) into: i128,
    /// The sum that went out.
    pub(crate) out: i128,
    /// Open purses that use its quota.
    pub(crate) quota: i64,
}

/// The sums of a transfer's deposits, in units of 10⁻⁸.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferSums {
    /// Their number.
    pub(crate) deposits: i64,
    /// Contributions less refunds.
    pub(crate) contributed: i128,
    /// Deposit fees.
    pub(crate) fees: i128,
    /// Deposits of which less is left than their fee.
    pub(crate) small: i64,
    /// The receiver of them all.
    pub(crate) receiver: Receiver,
}

/// Sums of reserves and transfers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forward {
    /// Of reserves.
    pub reserves: HashMap<ReservePub, ReserveSums>,
    /// Of transfers.
    pub transfers: HashMap<Wtid, TransferSums>,
}

/// Where sums are kept.
pub trait ForwardSource: Sync {
    /// Reads these reserves and transfers, as far as they are there.
    ///
    /// # Errors
    /// If they cannot be read.
    fn read(&self, reserves: &HashSet<ReservePub>, transfers: &HashSet<Wtid>) -> Result<Forward>;
}

/// Brings nothing forward: all rows are read.
pub struct NothingForward;

impl ForwardSource for NothingForward {
    fn read(&self, _: &HashSet<ReservePub>, _: &HashSet<Wtid>) -> Result<Forward> {
        Ok(Forward::default())
    }
}

impl ReserveSums {
    fn of(book: &ReserveBook) -> Self {
        Self { entries: book.entries, into: book.into, out: book.out, quota: book.quota }
    }

    fn less(self, other: Self) -> Self {
        Self {
            entries: self.entries - other.entries,
            into: self.into - other.into,
            out: self.out - other.out,
            quota: self.quota - other.quota,
        }
    }

    fn add_to(self, book: &mut ReserveBook) {
        book.entries += self.entries;
        book.into += self.into;
        book.out += self.out;
        book.quota += self.quota;
    }
}

impl TransferSums {
    fn less(self, book: &TransferBook) -> Self {
        Self {
            deposits: self.deposits - book.deposits,
            contributed: self.contributed - book.contributed,
            fees: self.fees - book.fees,
            small: self.small - book.small,
            receiver: self.receiver,
        }
    }

    fn add_to(self, book: &mut TransferBook) {
        book.deposits += self.deposits;
        book.contributed += self.contributed;
        book.fees += self.fees;
        book.small += self.small;
        if self.deposits == 0 {
            return;
        }
        if let Some((receiver, serial)) = book.receiver
            && receiver != self.receiver
        {
            book.stray.get_or_insert(serial);
        }
        let serial = book.receiver.map_or(0, |(_, serial)| serial);
        book.receiver = Some((self.receiver, serial));
    }
}

impl Forward {
    /// Adds the sums of other objects.
    pub(crate) fn add(&mut self, other: Self) {
        self.reserves.extend(other.reserves);
        self.transfers.extend(other.transfers);
    }

    /// Takes off what is in the books: what is left is brought forward.
    pub(crate) fn less(&self, books: &Books) -> Self {
        let reserves = self.reserves.iter().map(|(key, sums)| {
            let posted = books.reserves.read(key, ReserveSums::of).unwrap_or_default();
            (*key, sums.less(posted))
        });
        let transfers = self
            .transfers
            .iter()
            .map(|(wtid, sums)| (*wtid, books.transfers.read(wtid, |book| sums.less(book)).unwrap_or(*sums)));
        Self { reserves: reserves.collect(), transfers: transfers.collect() }
    }

    /// Adds what is brought forward to the books.
    pub(crate) fn add_to(&self, books: &Books) {
        for (reserve_pub, sums) in &self.reserves {
            books.reserves.change(reserve_pub, |book| sums.add_to(book));
        }
        for (wtid, sums) in &self.transfers {
            books.transfers.change(wtid, |book| sums.add_to(book));
        }
    }

    /// The sums of long histories. `scope` names the accounts that are complete; `None`: all.
    pub(crate) fn of(books: &Books, scope: Option<&Scope>, short_rows: i64) -> Self {
        let mut forward = Self::default();
        books.reserves.each(|reserve_pub, book| {
            let is_complete = scope.is_none_or(|scope| scope.reserves.contains(reserve_pub));
            // For a reserve that is missing, its rows are needed: they say who names it.
            if is_complete && book.entries > short_rows && book.reserve.is_some() {
                forward.reserves.insert(*reserve_pub, ReserveSums::of(book));
            }
        });
        books.transfers.each(|wtid, book| {
            let is_complete = scope.is_none_or(|scope| scope.transfers.contains(wtid));
            // Deposits with two receivers are read each time, to notice when it is one again.
            if let Some((receiver, _)) = book.receiver.filter(|_| book.stray.is_none())
                && is_complete
                && book.deposits > short_rows
            {
                let TransferBook { deposits, contributed, fees, small, .. } = *book;
                forward
                    .transfers
                    .insert(*wtid, TransferSums { deposits, contributed, fees, small, receiver });
            }
        });
        forward
    }
}
