//! The result of each event: statuses with their numbers on the wire.

macro_rules! statuses {
    ($(#[$meta:meta])* $name:ident { $($number:literal = $variant:ident / $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $variant = $number,)*
        }

        impl $name {
            /// Every status, by number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The number on the wire.
            #[must_use]
            pub const fn number(self) -> u32 {
                self as u32
            }

            /// The status with this number.
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Its name in the specification and in JSON.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }

            /// The status with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|status| status.name() == name)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

statuses! {
    /// Status of an account's creation. The rules define the precedence, not the numbers.
    CreateAccountStatus {
        1 = LinkedEventFailed / "linked_event_failed",
        2 = LinkedEventChainOpen / "linked_event_chain_open",
        3 = TimestampMustBeZero / "timestamp_must_be_zero",
        4 = ReservedField / "reserved_field",
        5 = ReservedFlag / "reserved_flag",
        6 = IdMustNotBeZero / "id_must_not_be_zero",
        7 = IdMustNotBeIntMax / "id_must_not_be_int_max",
        8 = FlagsAreMutuallyExclusive / "flags_are_mutually_exclusive",
        9 = DebitsPendingMustBeZero / "debits_pending_must_be_zero",
        10 = DebitsPostedMustBeZero / "debits_posted_must_be_zero",
        11 = CreditsPendingMustBeZero / "credits_pending_must_be_zero",
        12 = CreditsPostedMustBeZero / "credits_posted_must_be_zero",
        13 = LedgerMustNotBeZero / "ledger_must_not_be_zero",
        14 = CodeMustNotBeZero / "code_must_not_be_zero",
        15 = ExistsWithDifferentFlags / "exists_with_different_flags",
        16 = ExistsWithDifferentUserData128 / "exists_with_different_user_data_128",
        17 = ExistsWithDifferentUserData64 / "exists_with_different_user_data_64",
        18 = ExistsWithDifferentUserData32 / "exists_with_different_user_data_32",
        19 = ExistsWithDifferentLedger / "exists_with_different_ledger",
        20 = ExistsWithDifferentCode / "exists_with_different_code",
        21 = Exists / "exists",
        22 = ImportedEventExpected / "imported_event_expected",
        23 = ImportedEventNotExpected / "imported_event_not_expected",
        24 = ImportedEventTimestampOutOfRange / "imported_event_timestamp_out_of_range",
        25 = ImportedEventTimestampMustNotAdvance / "imported_event_timestamp_must_not_advance",
        26 = ImportedEventTimestampMustNotRegress / "imported_event_timestamp_must_not_regress",
        0xffff_ffff = Created / "created",
    }
}

statuses! {
    /// Status of a transfer's creation. The rules define the precedence, not the numbers.
    CreateTransferStatus {
        1 = LinkedEventFailed / "linked_event_failed",
        2 = LinkedEventChainOpen / "linked_event_chain_open",
        3 = TimestampMustBeZero / "timestamp_must_be_zero",
        4 = ReservedFlag / "reserved_flag",
        5 = IdMustNotBeZero / "id_must_not_be_zero",
        6 = IdMustNotBeIntMax / "id_must_not_be_int_max",
        7 = FlagsAreMutuallyExclusive / "flags_are_mutually_exclusive",
        8 = DebitAccountIdMustNotBeZero / "debit_account_id_must_not_be_zero",
        9 = DebitAccountIdMustNotBeIntMax / "debit_account_id_must_not_be_int_max",
        10 = CreditAccountIdMustNotBeZero / "credit_account_id_must_not_be_zero",
        11 = CreditAccountIdMustNotBeIntMax / "credit_account_id_must_not_be_int_max",
        12 = AccountsMustBeDifferent / "accounts_must_be_different",
        13 = PendingIdMustBeZero / "pending_id_must_be_zero",
        14 = PendingIdMustNotBeZero / "pending_id_must_not_be_zero",
        15 = PendingIdMustNotBeIntMax / "pending_id_must_not_be_int_max",
        16 = PendingIdMustBeDifferent / "pending_id_must_be_different",
        17 = TimeoutReservedForPendingTransfer / "timeout_reserved_for_pending_transfer",
        19 = LedgerMustNotBeZero / "ledger_must_not_be_zero",
        20 = CodeMustNotBeZero / "code_must_not_be_zero",
        21 = DebitAccountNotFound / "debit_account_not_found",
        22 = CreditAccountNotFound / "credit_account_not_found",
        23 = AccountsMustHaveTheSameLedger / "accounts_must_have_the_same_ledger",
        24 = TransferMustHaveTheSameLedgerAsAccounts / "transfer_must_have_the_same_ledger_as_accounts",
        25 = PendingTransferNotFound / "pending_transfer_not_found",
        26 = PendingTransferNotPending / "pending_transfer_not_pending",
        27 = PendingTransferHasDifferentDebitAccountId / "pending_transfer_has_different_debit_account_id",
        28 = PendingTransferHasDifferentCreditAccountId / "pending_transfer_has_different_credit_account_id",
        29 = PendingTransferHasDifferentLedger / "pending_transfer_has_different_ledger",
        30 = PendingTransferHasDifferentCode / "pending_transfer_has_different_code",
        31 = ExceedsPendingTransferAmount / "exceeds_pending_transfer_amount",
        32 = PendingTransferHasDifferentAmount / "pending_transfer_has_different_amount",
        33 = PendingTransferAlreadyPosted / "pending_transfer_already_posted",
        34 = PendingTransferAlreadyVoided / "pending_transfer_already_voided",
        35 = PendingTransferExpired / "pending_transfer_expired",
        36 = ExistsWithDifferentFlags / "exists_with_different_flags",
        37 = ExistsWithDifferentDebitAccountId / "exists_with_different_debit_account_id",
        38 = ExistsWithDifferentCreditAccountId / "exists_with_different_credit_account_id",
        39 = ExistsWithDifferentAmount / "exists_with_different_amount",
        40 = ExistsWithDifferentPendingId / "exists_with_different_pending_id",
        41 = ExistsWithDifferentUserData128 / "exists_with_different_user_data_128",
        42 = ExistsWithDifferentUserData64 / "exists_with_different_user_data_64",
        43 = ExistsWithDifferentUserData32 / "exists_with_different_user_data_32",
        44 = ExistsWithDifferentTimeout / "exists_with_different_timeout",
        45 = ExistsWithDifferentCode / "exists_with_different_code",
        46 = Exists / "exists",
        47 = OverflowsDebitsPending / "overflows_debits_pending",
        48 = OverflowsCreditsPending / "overflows_credits_pending",
        49 = OverflowsDebitsPosted / "overflows_debits_posted",
        50 = OverflowsCreditsPosted / "overflows_credits_posted",
        51 = OverflowsDebits / "overflows_debits",
        52 = OverflowsCredits / "overflows_credits",
        53 = OverflowsTimeout / "overflows_timeout",
        54 = ExceedsCredits / "exceeds_credits",
        55 = ExceedsDebits / "exceeds_debits",
        56 = ImportedEventExpected / "imported_event_expected",
        57 = ImportedEventNotExpected / "imported_event_not_expected",
        58 = ImportedEventTimestampOutOfRange / "imported_event_timestamp_out_of_range",
        59 = ImportedEventTimestampMustNotAdvance / "imported_event_timestamp_must_not_advance",
        60 = ImportedEventTimestampMustNotRegress / "imported_event_timestamp_must_not_regress",
        61 = ImportedEventTimestampMustPostdateDebitAccount / "imported_event_timestamp_must_postdate_debit_account",
        62 = ImportedEventTimestampMustPostdateCreditAccount / "imported_event_timestamp_must_postdate_credit_account",
        63 = ImportedEventTimeoutMustBeZero / "imported_event_timeout_must_be_zero",
        64 = ClosingTransferMustBePending / "closing_transfer_must_be_pending",
        65 = DebitAccountAlreadyClosed / "debit_account_already_closed",
        66 = CreditAccountAlreadyClosed / "credit_account_already_closed",
        67 = ExistsWithDifferentLedger / "exists_with_different_ledger",
        68 = IdAlreadyFailed / "id_already_failed",
        0xffff_ffff = Created / "created",
    }
}

impl CreateTransferStatus {
    /// Returns whether this refusal depends on state that may change. The id must then never succeed later:
    /// it is burnt.
    #[must_use]
    pub const fn burns(self) -> bool {
        matches!(
            self,
            Self::DebitAccountNotFound
                | Self::CreditAccountNotFound
                | Self::PendingTransferNotFound
                | Self::DebitAccountAlreadyClosed
                | Self::CreditAccountAlreadyClosed
                | Self::ExceedsCredits
                | Self::ExceedsDebits
        )
    }

    /// Returns whether the transfer exists as requested: created by this event or, if it is a repetition, by
    /// an earlier one.
    #[must_use]
    pub const fn stands(self) -> bool {
        matches!(self, Self::Created | Self::Exists)
    }
}

impl CreateAccountStatus {
    /// Returns whether the account exists as requested: created by this event or, if it is a repetition, by
    /// an earlier one.
    #[must_use]
    pub const fn stands(self) -> bool {
        matches!(self, Self::Created | Self::Exists)
    }
}

/// Result of one event of a create request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateResult<S> {
    /// Created: the new object's timestamp. Exists: the old object's. Otherwise the time of validation.
    pub timestamp: u64,
    /// The status.
    pub status: S,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip() {
        for &status in CreateTransferStatus::ALL {
            assert_eq!(CreateTransferStatus::from_number(status.number()), Some(status));
            assert_eq!(CreateTransferStatus::from_name(status.name()), Some(status));
        }
        for &status in CreateAccountStatus::ALL {
            assert_eq!(CreateAccountStatus::from_number(status.number()), Some(status));
            assert_eq!(CreateAccountStatus::from_name(status.name()), Some(status));
        }
        assert_eq!(CreateTransferStatus::from_number(18), None);
        assert_eq!(CreateTransferStatus::from_number(0), None);
    }
}
