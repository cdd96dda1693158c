//! Accounts and transfers.

/// Size of an encoded [`Account`] or [`Transfer`], in bytes.
pub const RECORD_BYTES: usize = 128;

macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$flag_meta:meta])* $flag:ident = $bit:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub u16);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$flag_meta])* pub const $flag: Self = Self(1 << $bit);)*
            /// All flags with a meaning. All other bits must be 0.
            pub const ALL: Self = Self(0 $(| 1 << $bit)*);

            /// Returns whether all flags of `other` are set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Returns whether any flag of `other` is set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Both sets of flags.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These flags, minus those of `other`.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// The names of the set flags, in the order of their bits.
            pub fn names(self) -> impl Iterator<Item = &'static str> {
                [$((Self::$flag, stringify!($flag)),)*]
                    .into_iter()
                    .filter(move |(flag, _)| self.contains(*flag))
                    .map(|(_, name)| name)
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let unknown = self.0 & !Self::ALL.0;
                let mut names: Vec<String> = self.names().map(str::to_lowercase).collect();
                if unknown != 0 {
                    names.push(format!("{unknown:#x}"));
                }
                f.write_str(&if names.is_empty() { "none".to_owned() } else { names.join("|") })
            }
        }
    };
}

flags! {
    /// Flags of an account.
    AccountFlags {
        /// In a batch: succeeds or fails together with the next event.
        LINKED = 0,
        /// Refuses transfers that would raise debits (pending and posted) above posted credits.
        DEBITS_MUST_NOT_EXCEED_CREDITS = 1,
        /// Refuses transfers that would raise credits (pending and posted) above posted debits.
        CREDITS_MUST_NOT_EXCEED_DEBITS = 2,
        /// Past balances can be queried.
        HISTORY = 3,
        /// The creation carries its own timestamp.
        IMPORTED = 4,
        /// Refuses every movement except the voiding or expiry of a pending transfer.
        CLOSED = 5,
    }
}

flags! {
    /// Flags of a transfer.
    TransferFlags {
        /// In a batch: succeeds or fails together with the next event.
        LINKED = 0,
        /// Reserves the amount. A later transfer posts or voids it, or it expires.
        PENDING = 1,
        /// Posts the pending transfer named by `pending_id`.
        POST_PENDING_TRANSFER = 2,
        /// Voids the pending transfer named by `pending_id`.
        VOID_PENDING_TRANSFER = 3,
        /// The amount is an upper bound: moves at most what the debit account has.
        BALANCING_DEBIT = 4,
        /// The amount is an upper bound: moves at most what the credit account may receive.
        BALANCING_CREDIT = 5,
        /// Pending only: closes the debit account.
        CLOSING_DEBIT = 6,
        /// Pending only: closes the credit account.
        CLOSING_CREDIT = 7,
        /// The event carries its own timestamp.
        IMPORTED = 8,
    }
}

/// An account. Only the ledger sets the balances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Chosen by the client: unique among all accounts; neither 0 nor 2^128-1.
    pub id: u128,
    /// Sum of unresolved pending debits.
    pub debits_pending: u128,
    /// Sum of posted debits. Never decreases.
    pub debits_posted: u128,
    /// Sum of unresolved pending credits.
    pub credits_pending: u128,
    /// Sum of posted credits. Never decreases.
    pub credits_posted: u128,
    /// Free for the client; 0 means absent in filters.
    pub user_data_128: u128,
    /// Free for the client; 0 means absent in filters.
    pub user_data_64: u64,
    /// Free for the client; 0 means absent in filters.
    pub user_data_32: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The currency or asset: only accounts of one ledger trade. Not 0.
    pub ledger: u32,
    /// Class in the chart of accounts. Not 0.
    pub code: u16,
    /// See [`AccountFlags`].
    pub flags: AccountFlags,
    /// Nanoseconds since the epoch, given by the ledger.
    pub timestamp: u64,
}

/// A transfer: immutable once created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Chosen by the client: unique among all transfers, the idempotency key; neither 0 nor 2^128-1.
    pub id: u128,
    /// The paying account.
    pub debit_account_id: u128,
    /// The receiving account.
    pub credit_account_id: u128,
    /// In the smallest unit of the ledger.
    pub amount: u128,
    /// Post and void only: the pending transfer that is resolved.
    pub pending_id: u128,
    /// Free for the client; 0 means absent (post and void: inherited).
    pub user_data_128: u128,
    /// Free for the client; 0 means absent (post and void: inherited).
    pub user_data_64: u64,
    /// Free for the client; 0 means absent (post and void: inherited).
    pub user_data_32: u32,
    /// Pending only: seconds until it expires; 0 is never.
    pub timeout: u32,
    /// The ledger of both accounts.
    pub ledger: u32,
    /// Kind of transfer. Not 0.
    pub code: u16,
    /// See [`TransferFlags`].
    pub flags: TransferFlags,
    /// Nanoseconds since the epoch, given by the ledger.
    pub timestamp: u64,
}

/// Reads fields off a record.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("the fields add up to a record");
        self.0 = rest;
        *field
    }
    fn u128(&mut self) -> u128 {
        u128::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }
}

/// Writes and reads a record. Given are the fields of 128 bits at its beginning, and the field of 32 bits in which the
/// records differ.
macro_rules! layout {
    ($record:ident, $flags:ident, [$($word:ident),*], $own:ident) => {
        impl $record {
            /// The record in the layout of existing clients of this family: fields in order, little endian, no
            /// padding.
            #[must_use]
            pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
                let mut out = [0; RECORD_BYTES];
                for (to, word) in out.chunks_exact_mut(16).zip([$(self.$word),*]) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
                out[96..104].copy_from_slice(&self.user_data_64.to_le_bytes());
                out[104..108].copy_from_slice(&self.user_data_32.to_le_bytes());
                out[108..112].copy_from_slice(&self.$own.to_le_bytes());
                out[112..116].copy_from_slice(&self.ledger.to_le_bytes());
                out[116..118].copy_from_slice(&self.code.to_le_bytes());
                out[118..120].copy_from_slice(&self.flags.0.to_le_bytes());
                out[120..].copy_from_slice(&self.timestamp.to_le_bytes());
                out
            }

            /// The inverse of `to_bytes`. Every record decodes; the rules check the contents.
            #[must_use]
            pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
                let mut fields = Fields(bytes);
                Self {
                    $($word: fields.u128(),)*
                    user_data_64: fields.u64(),
                    user_data_32: fields.u32(),
                    $own: fields.u32(),
                    ledger: fields.u32(),
                    code: fields.u16(),
                    flags: $flags(fields.u16()),
                    timestamp: fields.u64(),
                }
            }
        }
    };
}

layout!(
    Account,
    AccountFlags,
    [id, debits_pending, debits_posted, credits_pending, credits_posted, user_data_128],
    reserved
);
layout!(
    Transfer,
    TransferFlags,
    [id, debit_account_id, credit_account_id, amount, pending_id, user_data_128],
    timeout
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_128_bytes_in_order() {
        let account = Account {
            id: 1,
            debits_pending: 2,
            debits_posted: 3,
            credits_pending: 4,
            credits_posted: 5,
            user_data_128: 6,
            user_data_64: 7,
            user_data_32: 8,
            reserved: 9,
            ledger: 10,
            code: 11,
            flags: AccountFlags::HISTORY,
            timestamp: 12,
        };
        let bytes = account.to_bytes();
        assert_eq!((bytes[0], bytes[16], bytes[80], bytes[96], bytes[104], bytes[108]), (1, 2, 6, 7, 8, 9));
        assert_eq!((bytes[112], bytes[116], bytes[118], bytes[120]), (10, 11, 8, 12));
        assert_eq!(Account::from_bytes(&bytes), account);
        let transfer = Transfer {
            id: 1,
            debit_account_id: 2,
            credit_account_id: 3,
            amount: 4,
            pending_id: 5,
            user_data_128: 6,
            user_data_64: 7,
            user_data_32: 8,
            timeout: 9,
            ledger: 10,
            code: 11,
            flags: TransferFlags::IMPORTED,
            timestamp: 12,
        };
        assert_eq!(Transfer::from_bytes(&transfer.to_bytes()), transfer);
        assert_eq!(transfer.to_bytes()[119], 1);
    }

    #[test]
    fn flags_show_their_names() {
        let flags = TransferFlags::LINKED | TransferFlags::PENDING | TransferFlags(1 << 12);
        assert_eq!(format!("{flags:?}"), "linked|pending|0x1000");
        assert!(!TransferFlags::ALL.contains(flags));
    }
}
