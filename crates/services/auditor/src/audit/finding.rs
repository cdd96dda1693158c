//! Findings of an audit, and the rules that find them.

use batzen_crypto::base32;
use batzen_store::TableDef;
use serde::Serialize;

batzen_protocol::enumeration! {
    /// The part of the audit that a rule belongs to. Five of them are the protocol's; the rest of its six is split off
    /// where our tables allow more.
    #[derive(Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Check {
        /// Outgoing transfers are the sums of their deposits.
        Aggregation => "aggregation",
        /// Coins are genuine, their owners authorised everything, and no denomination redeemed more than it issued.
        Coins => "coins",
        /// Deposits that merchants proved are on the books.
        Deposits => "deposits",
        /// Purses add up and are decided in time.
        Purses => "purses",
        /// Balances of reserves follow from their credits and debits.
        Reserves => "reserves",
        /// The bank's records agree with the exchange's.
        Wire => "wire",
        /// The master key signed all keys, fees and accounts.
        Keys => "keys",
        /// Rows seen before have not been changed or removed, and the balance sheet adds up.
        Books => "books",
    }
}

/// The list of the protocol's report objects that has a finding (auditor chapter 1.5 and the report of each check).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum List {
    /// A record is malformed or contradicts another one.
    RowInconsistencies,
    /// Two ways of computing a figure differ.
    AmountArithmeticInconsistencies,
    /// An operation that its owner did not authorise.
    BadSigLosses,
    /// A coin's history does not add up.
    CoinInconsistencies,
    /// A transfer is not the sum of its deposits.
    WireOutInconsistencies,
    /// Periods of wire fees overlap.
    WireFeeTimeInconsistencies,
    /// A melt without reveal: no fault.
    RefreshHanging,
    /// An auditor's signature on a denomination is invalid.
    UnsignedDenominations,
    /// More value was redeemed than issued.
    Emergencies,
    /// More coins are known than were issued.
    EmergenciesByCount,
    /// A confirmed deposit is not on the books.
    DepositConfirmationInconsistencies,
    /// A purse expired without a decision.
    PurseNotClosedInconsistencies,
    /// A reserve's stored balance is wrong.
    ReserveBalanceSummaryWrongInconsistencies,
    /// A reserve paid more than it had.
    ReserveBalanceInsufficientInconsistencies,
    /// An expired reserve still has money.
    ReserveNotClosedInconsistencies,
    /// A coin was withdrawn outside of its denomination's time.
    DenominationKeyValidityWithdrawInconsistencies,
    /// A transfer and the bank's record of it differ.
    WireOutAmountInconsistencies,
    /// A credit and the bank's record of it differ.
    ReserveInAmountInconsistencies,
    /// A credit is attributed to another sender.
    MisattributionInInconsistencies,
    /// Dates differ.
    RowMinorInconsistencies,
    /// Two transfers have one identifier.
    WireFormatInconsistencies,
    /// A deposit is due and not paid.
    LagDetails,
    /// A closed reserve is not paid.
    ReserveLagDetails,
}

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Worth knowing; it happens to honest exchanges.
    Notice,
    /// Something is wrong.
    Finding,
}

/// The description of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleInfo {
    /// Its stable name.
    pub name: &'static str,
    pub check: Check,
    /// The list of its findings.
    pub(crate) list: List,
    pub(crate) severity: Severity,
    /// The name of the operation in the protocol's reports.
    pub(crate) operation: &'static str,
    /// The sign of `profitable` if the exchange's figure is the larger one.
    pub(crate) profit: i8,
    /// The meaning of a finding.
    pub meaning: &'static str,
    /// Advice to the auditor.
    pub(crate) advice: &'static str,
}

macro_rules! rules {
    ($($variant:ident = $name:literal, $check:ident, $list:ident, $severity:ident, $operation:literal, $profit:literal,
       $meaning:literal, $advice:literal;)*) => {
        /// A rule that every history of an honest exchange satisfies.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Rule { $(#[doc = $meaning] $variant,)* }

        impl Rule {
            /// All rules.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Its description.
            #[must_use]
            pub const fn info(self) -> RuleInfo {
                match self {
                    $(Self::$variant => RuleInfo {
                        name: $name,
                        check: Check::$check,
                        list: List::$list,
                        severity: Severity::$severity,
                        operation: $operation,
                        profit: $profit,
                        meaning: $meaning,
                        advice: $advice,
                    },)*
                }
            }
        }
    };
}

rules! {
    CoinSignature = "coin-signature", Coins, BadSigLosses, Finding, "coin", 0,
        "A coin is not signed by its denomination.",
        "Ask the operator how the coin was accepted. If many are found, revoke the denomination.";
    CoinDeposited = "coin-deposited", Coins, BadSigLosses, Finding, "deposit", 0,
        "A coin that its denomination did not sign was deposited.",
        "Ask the operator how the coin was accepted.";
    CoinMelted = "coin-melted", Coins, BadSigLosses, Finding, "melt", 0,
        "A coin that its denomination did not sign was melted.",
        "Ask the operator how the coin was accepted.";
    CoinWired = "coin-wired", Aggregation, BadSigLosses, Finding, "wire", 0,
        "A transfer pays for a coin that its denomination did not sign.",
        "Stop the transfer if the bank has not executed it.";
    CoinPaid = "coin-paid", Aggregation, RowInconsistencies, Finding, "", 0,
        "bad denomination signature",
        "Stop the transfer if the bank has not executed it.";
    CoinDenomination = "coin-denomination", Coins, RowInconsistencies, Finding, "", 0,
        "A coin names a denomination that does not exist.",
        "Compare the denominations with those that the exchange publishes.";
    CoinMissing = "coin-missing", Coins, RowInconsistencies, Finding, "", 0,
        "A coin was used that is not on the books.",
        "Find out who removed the coin; it could be spent a second time.";
    CoinOverspent = "coin-overspent", Coins, AmountArithmeticInconsistencies, Finding, "spend", -1,
        "A coin spent more than its value.",
        "Compare the coin's deposits, melts and refunds with the exchange's log.";
    CoinRemaining = "coin-remaining", Coins, AmountArithmeticInconsistencies, Finding, "coin balance", -1,
        "What is left of a coin does not follow from its history.",
        "Compare the coin's history with the exchange's log; a row of it was changed, added or removed.";
    CoinZombie = "coin-zombie", Coins, RowInconsistencies, Finding, "", 0,
        "A coin is marked as refilled by a recoup that it did not have, or is not marked although it was.",
        "Look at the recoups of coins that it was exchanged for.";
    DepositSignature = "deposit-signature", Coins, BadSigLosses, Finding, "deposit", 0,
        "The coin's owner did not authorise a deposit.",
        "Do not pay the merchant from this deposit; find out who changed it.";
    DepositDeadlines = "deposit-deadlines", Coins, RowInconsistencies, Finding, "", 0,
        "A deposit's refund deadline is after its wire deadline.",
        "Find out who changed the deposit.";
    DepositDenomination = "deposit-denomination", Coins, RowInconsistencies, Finding, "", 0,
        "A deposit names another denomination than its coin.",
        "Find out who changed the deposit; its fee is that of the wrong denomination.";
    DepositBelowFee = "deposit-below-fee", Coins, AmountArithmeticInconsistencies, Finding, "aggregation (fee structure)", -1,
        "A deposit is smaller than its fee.",
        "Find out who changed the deposit.";
    RefundSignature = "refund-signature", Coins, BadSigLosses, Finding, "refund", 0,
        "The merchant did not authorise a refund.",
        "Ask the merchant; the refund moved money from it to the coin.";
    RefundFee = "refund-fee", Coins, AmountArithmeticInconsistencies, Finding, "refund (fee)", -1,
        "A refund is smaller than its fee.",
        "Find out who changed the refund.";
    RefundSum = "refund-sum", Aggregation, CoinInconsistencies, Finding, "refund (merchant)", -1,
        "The refunds of a deposit are not what the deposit says.",
        "A refund was changed, added or removed: compare with the merchant's books.";
    RefundExcess = "refund-excess", Aggregation, CoinInconsistencies, Finding, "refund (balance)", 1,
        "More of a deposit was refunded than was paid.",
        "Find out who changed the deposit or its refunds.";
    MeltSignature = "melt-signature", Coins, BadSigLosses, Finding, "melt", 0,
        "The coin's owner did not authorise a melt.",
        "Find out who changed the melt.";
    MeltBelowFee = "melt-below-fee", Coins, AmountArithmeticInconsistencies, Finding, "melt contribution vs. fee", -1,
        "A melt is smaller than its fee.",
        "Find out who changed the melt.";
    MeltCost = "melt-cost", Coins, AmountArithmeticInconsistencies, Finding, "melt (cost)", 1,
        "A refresh gave more value than was melted.",
        "Compare the fresh coins with the exchange's log.";
    MeltIndex = "melt-index", Coins, RowInconsistencies, Finding, "", 0,
        "A melt names an index that does not exist.",
        "Find out who changed the melt.";
    MeltMissing = "melt-missing", Coins, RowInconsistencies, Finding, "", 0,
        "A refresh was revealed that was never melted.",
        "Find out who removed the melt; the fresh coins were given for nothing.";
    MeltHanging = "melt-hanging", Coins, RefreshHanging, Notice, "", 0,
        "A melt was not revealed. The wallet may come back.",
        "Nothing.";
    LinkSignature = "link-signature", Coins, BadSigLosses, Finding, "link", 0,
        "The old coin's owner did not sign the link to a fresh coin.",
        "Find out who changed the reveal.";
    FreshDenomination = "fresh-denomination", Coins, RowInconsistencies, Finding, "", 0,
        "A fresh coin names a denomination that does not exist.",
        "Find out who changed the reveal.";
    RecoupSignature = "recoup-signature", Coins, BadSigLosses, Finding, "recoup", 0,
        "The coin's owner did not authorise a recoup.",
        "Find out who changed the recoup.";
    RecoupRefreshSignature = "recoup-refresh-signature", Coins, BadSigLosses, Finding, "recoup-refresh", 0,
        "The coin's owner did not authorise a recoup of a refreshed coin.",
        "Find out who changed the recoup.";
    RecoupNotRevoked = "recoup-not-revoked", Coins, BadSigLosses, Finding, "recoup", 0,
        "A coin was recouped although its denomination is not revoked.",
        "Ask for the revocation's signature; without it the payout was unjustified.";
    RecoupBlinding = "recoup-blinding", Coins, RowInconsistencies, Finding, "", 0,
        "A recouped coin does not come from the planchet that it names.",
        "Find out who changed the recoup; the money may have gone to the wrong reserve.";
    RecoupOrigin = "recoup-origin", Coins, RowInconsistencies, Finding, "", 0,
        "A recouped coin was not signed by the withdrawal or reveal that it names.",
        "Find out who changed the recoup or removed the withdrawal.";
    RecoupPair = "recoup-pair", Reserves, RowInconsistencies, Finding, "", 0,
        "A recoup and the credit that it caused do not match.",
        "One of the two rows was changed, added or removed.";
    OpenDepositSignature = "open-deposit-signature", Coins, BadSigLosses, Finding, "reserve-open-deposit", 0,
        "The coin's owner did not authorise a payment for a reserve.",
        "Find out who changed the payment.";
    EmergencyAmount = "emergency-amount", Coins, Emergencies, Finding, "", 0,
        "A denomination redeemed more value than it issued.",
        "Its private key was used outside of the exchange's books: revoke the denomination.";
    EmergencyCount = "emergency-count", Coins, EmergenciesByCount, Finding, "", 0,
        "More coins of a denomination were spent than were issued.",
        "Its private key was used outside of the exchange's books: revoke the denomination.";
    CertificationInvalid = "certification-invalid", Coins, UnsignedDenominations, Finding, "", 0,
        "This auditor's signature on a denomination is invalid.",
        "Sign the denomination again, and find out who changed the signature.";
    PaytoHash = "payto-hash", Aggregation, RowInconsistencies, Finding, "", 0,
        "An account is stored under another hash than its own.",
        "Find out who changed the account: payments may go to somebody else.";
    TransferDeposits = "transfer-deposits", Aggregation, WireOutInconsistencies, Finding, "", 0,
        "A transfer is not the sum of its deposits less fees.",
        "Compare the transfer with the deposits that it names.";
    TransferReceiver = "transfer-receiver", Aggregation, RowInconsistencies, Finding, "", 0,
        "A deposit was paid in a transfer to another receiver.",
        "Stop the transfer if the bank has not executed it; pay the right merchant.";
    TransferMissing = "transfer-missing", Aggregation, RowInconsistencies, Finding, "", 0,
        "Deposits name a transfer that does not exist.",
        "Find out who removed the transfer: the merchant was not paid.";
    TransferFee = "transfer-fee", Aggregation, AmountArithmeticInconsistencies, Finding, "wire out (fee)", 1,
        "A transfer's wire fee is not that of its time.",
        "Compare with the fees that the master key signed.";
    TransferOrder = "transfer-order", Aggregation, RowInconsistencies, Finding, "", 0,
        "The decision to pay and the order to the bank differ.",
        "Do not execute the order; find out which of the two was changed.";
    TransferUnordered = "transfer-unordered", Aggregation, RowInconsistencies, Finding, "", 0,
        "A decision to pay has no order to the bank.",
        "Find out who removed the order: somebody was not paid.";
    TransferUnjustified = "transfer-unjustified", Aggregation, RowInconsistencies, Finding, "", 0,
        "An order to the bank has no decision behind it.",
        "Stop it if the bank has not executed it.";
    AggregateSum = "aggregate-sum", Aggregation, AmountArithmeticInconsistencies, Finding, "aggregation (transient)", -1,
        "A sum that waits to be paid is not the sum of its deposits.",
        "Compare it with the deposits that name its identifier.";
    WireFeeSignature = "wire-fee-signature", Aggregation, RowInconsistencies, Finding, "", 0,
        "wire fee signature invalid at given time",
        "Ask for the fee that the master key signed; fees taken since are in doubt.";
    WireFeeOverlap = "wire-fee-overlap", Aggregation, WireFeeTimeInconsistencies, Finding, "", 0,
        "Two periods of wire fees overlap.",
        "Ask which of the two holds.";
    WireFeeMissing = "wire-fee-missing", Aggregation, RowInconsistencies, Finding, "", 0,
        "There is no wire fee for the time of a transfer.",
        "Ask for the signed fee of that time.";
    DepositMissing = "deposit-missing", Deposits, DepositConfirmationInconsistencies, Finding, "", 0,
        "The exchange confirmed a deposit to a merchant that is not on its books.",
        "If the copy of the books is up to date, the exchange hides what it owes.";
    PurseSignature = "purse-signature", Purses, BadSigLosses, Finding, "purse-request", 0,
        "The purse's key did not sign the purse's terms.",
        "Find out who changed the purse.";
    PurseMergeSignature = "purse-merge-signature", Purses, BadSigLosses, Finding, "merge-purse", 0,
        "The merge key did not authorise the merge of a purse.",
        "Find out who changed the merge: the money may have gone to the wrong reserve.";
    AccountMergeSignature = "account-merge-signature", Purses, BadSigLosses, Finding, "account-merge", 0,
        "The reserve's owner did not authorise the merge of a purse.",
        "Find out who changed the merge.";
    PurseDepositSignature = "purse-deposit-signature", Purses, BadSigLosses, Finding, "purse-deposit", 0,
        "The coin's owner did not authorise a deposit into a purse.",
        "Find out who changed the deposit.";
    PurseDeletionSignature = "purse-deletion-signature", Purses, BadSigLosses, Finding, "purse-delete", 0,
        "The purse's key did not authorise its deletion.",
        "Find out who changed the deletion.";
    PurseDepositDenomination = "purse-deposit-denomination", Purses, RowInconsistencies, Finding, "", 0,
        "A deposit into a purse names another denomination than its coin.",
        "Find out who changed the deposit.";
    PurseMissing = "purse-missing", Purses, RowInconsistencies, Finding, "", 0,
        "A deposit, merge or deletion names a purse that does not exist.",
        "Find out who removed the purse.";
    PurseBalance = "purse-balance", Purses, AmountArithmeticInconsistencies, Finding, "purse-balance", 0,
        "What a purse holds does not follow from its deposits.",
        "Compare the purse's deposits with the exchange's log.";
    PurseDecision = "purse-decision", Purses, RowInconsistencies, Finding, "", 0,
        "The decision on a purse contradicts its deposits, its merge or its deletion.",
        "Find out which of the rows was changed.";
    PurseInsufficient = "purse-insufficient", Purses, AmountArithmeticInconsistencies, Finding, "purse-decision: merge", 0,
        "A purse was paid that did not have its target.",
        "The reserve got more than coins paid in.";
    PurseFee = "purse-fee", Purses, RowInconsistencies, Finding, "", 0,
        "A purse's fee is not that of its time.",
        "Compare with the fees that the master key signed.";
    PurseNotClosed = "purse-not-closed", Purses, PurseNotClosedInconsistencies, Finding, "", 0,
        "A purse expired without a decision.",
        "Start the exchange's worker for expired purses.";
    PurseQuota = "purse-quota", Purses, RowInconsistencies, Finding, "", 0,
        "A reserve's count of open purses is wrong.",
        "Compare with the purses that it owns.";
    WithdrawSignature = "withdraw-signature", Reserves, BadSigLosses, Finding, "withdraw", 0,
        "The reserve's owner did not authorise a withdrawal.",
        "Find out who changed the withdrawal.";
    WithdrawDenomination = "withdraw-denomination", Reserves, RowInconsistencies, Finding, "", 0,
        "A withdrawal names a denomination that does not exist.",
        "Find out who changed the withdrawal.";
    WithdrawTime = "withdraw-time", Reserves, DenominationKeyValidityWithdrawInconsistencies, Finding, "", 0,
        "A coin was withdrawn outside of its denomination's time.",
        "Check the exchange's clock, and who changed the withdrawal or the denomination.";
    HistorySignature = "history-signature", Reserves, BadSigLosses, Finding, "account-history", 0,
        "The reserve's owner did not ask for a paid history.",
        "Find out who changed the request.";
    OpenSignature = "open-signature", Reserves, BadSigLosses, Finding, "reserve-open", 0,
        "The reserve's owner did not ask to prolong it.",
        "Find out who changed the request.";
    OpenPayment = "open-payment", Reserves, RowInconsistencies, Finding, "", 0,
        "A prolonged reserve was paid with less than its cost, or a coin paid for a request that does not exist.",
        "Compare the request with its payments.";
    CloseSignature = "close-signature", Reserves, BadSigLosses, Finding, "close-request", 0,
        "The reserve's owner did not ask to close it.",
        "Find out who changed the request.";
    CloseReceiver = "close-receiver", Reserves, RowInconsistencies, Finding, "", 0,
        "A closed reserve was paid to an account that neither filled it nor was asked for.",
        "Stop the transfer if the bank has not executed it.";
    CloseFee = "close-fee", Reserves, AmountArithmeticInconsistencies, Finding, "closing aggregation fee", 1,
        "A closing fee is not that of its time.",
        "Compare with the fees that the master key signed.";
    CloseAmount = "close-amount", Reserves, AmountArithmeticInconsistencies, Finding, "closing amount", 1,
        "What a closing paid is not its amount less the fee.",
        "Compare the closing with the order to the bank.";
    ReserveMissing = "reserve-missing", Reserves, ReserveBalanceInsufficientInconsistencies, Finding, "", 0,
        "A reserve has a history but is not on the books.",
        "Find out who removed the reserve: its owner lost money.";
    ReserveBalance = "reserve-balance", Reserves, ReserveBalanceSummaryWrongInconsistencies, Finding, "", 0,
        "A reserve's balance does not follow from its history.",
        "Compare the reserve's history with the exchange's log; a row of it was changed, added or removed.";
    ReserveOverdrawn = "reserve-overdrawn", Reserves, ReserveBalanceInsufficientInconsistencies, Finding, "", 0,
        "A reserve paid out more than it received.",
        "Compare its credits with the bank's history.";
    ReserveOrigin = "reserve-origin", Reserves, RowInconsistencies, Finding, "", 0,
        "A reserve's account of origin did not send its first transfer (in a copy that follows: none of its transfers).",
        "Find out who changed it: a closing would pay the wrong person.";
    ReserveNotClosed = "reserve-not-closed", Reserves, ReserveNotClosedInconsistencies, Finding, "", 0,
        "A reserve expired and still has money.",
        "Start the exchange's closer.";
    CreditSubject = "credit-subject", Wire, ReserveInAmountInconsistencies, Finding, "", 0,
        "wire subject does not match",
        "Somebody else's reserve was credited: compare with the bank's record of the transfer.";
    CreditAmount = "credit-amount", Wire, ReserveInAmountInconsistencies, Finding, "", 0,
        "amounts differ",
        "Compare with the bank's record of the transfer.";
    CreditInvented = "credit-invented", Wire, ReserveInAmountInconsistencies, Finding, "", 0,
        "transfer not found at the bank",
        "The exchange credited money that it never received.";
    CreditUnbooked = "credit-unbooked", Wire, ReserveInAmountInconsistencies, Finding, "", 0,
        "transfer not booked by the exchange",
        "A customer paid and got no reserve: start the exchange's wirewatch again from an earlier row.";
    CreditTwice = "credit-twice", Wire, RowInconsistencies, Finding, "", 0,
        "bank row used twice",
        "One transfer was credited to two reserves.";
    CreditSender = "credit-sender", Wire, MisattributionInInconsistencies, Finding, "", 0,
        "A credit is attributed to another sender.",
        "A closing would pay the wrong person: compare with the bank's record.";
    CreditDate = "credit-date", Wire, RowMinorInconsistencies, Finding, "", 0,
        "execution date mismatch",
        "Compare with the bank's record of the transfer.";
    DebitTwice = "debit-twice", Wire, WireFormatInconsistencies, Finding, "", 0,
        "The bank executed two transfers with one identifier.",
        "Ask the bank for its record of both.";
    DebitMissing = "debit-missing", Wire, WireOutAmountInconsistencies, Finding, "", 0,
        "The bank does not show a transfer that the exchange says it has accepted.",
        "Ask the bank; the receiver was not paid.";
    DebitWaiting = "debit-waiting", Wire, WireOutAmountInconsistencies, Notice, "", 0,
        "A transfer was decided and is not executed yet.",
        "Nothing, unless it stays: then look at the exchange's transfer worker.";
    DebitReceiver = "debit-receiver", Wire, WireOutAmountInconsistencies, Finding, "", 0,
        "receiver differs",
        "Somebody else was paid: ask the bank for its record.";
    DebitAmount = "debit-amount", Wire, WireOutAmountInconsistencies, Finding, "", 0,
        "amounts differ",
        "Ask the bank for its record of the transfer.";
    DebitDate = "debit-date", Wire, RowMinorInconsistencies, Finding, "", 0,
        "execution date mismatch",
        "Ask the bank for its record of the transfer.";
    DebitUnjustified = "debit-unjustified", Wire, WireOutAmountInconsistencies, Finding, "", 0,
        "justification for wire transfer not found",
        "Money left the exchange without a reason: stop outgoing transfers and investigate.";
    DebitPending = "debit-pending", Wire, WireOutAmountInconsistencies, Notice, "", 0,
        "The bank executed a transfer that no row explains yet. It is younger than the tolerance, so the row may be on its way.",
        "Look again in a quarter of an hour: then it is explained, or a finding. If it is large, stop outgoing transfers now.";
    ClosureLag = "closure-lag", Wire, ReserveLagDetails, Notice, "", 0,
        "A closed reserve is not paid yet.",
        "Nothing, unless it stays: then look at the exchange's transfer worker.";
    DenominationSignature = "denomination-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not sign a denomination with these terms.",
        "Do not trust the denomination's value and fees; ask the operator.";
    DenominationKey = "denomination-key", Keys, RowInconsistencies, Finding, "", 0,
        "A denomination's key is not the one that its hash names, or another denomination has it, too.",
        "Find out who changed the key.";
    RevocationSignature = "revocation-signature", Coins, RowInconsistencies, Finding, "", 0,
        "The master key did not sign a revocation.",
        "Treat the denomination as not revoked, and ask the operator.";
    SigningKeySignature = "signing-key-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not sign a signing key, or its revocation.",
        "Do not accept what this key signed.";
    AccountSignature = "account-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not sign one of the exchange's accounts.",
        "Warn users: transfers to this account may be lost.";
    GlobalFeeSignature = "global-fee-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not sign a period's global fees.",
        "Ask for the fees that it signed.";
    ExtensionsSignature = "extensions-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not sign the extensions.",
        "Ask for the extensions that it signed.";
    DrainSignature = "drain-signature", Keys, RowInconsistencies, Finding, "", 0,
        "The master key did not order a payout of profit.",
        "Stop the transfer if the bank has not executed it.";
    SheetBalance = "sheet-balance", Books, AmountArithmeticInconsistencies, Finding, "balance sheet", 0,
        "What came in is not what went out and what is owed.",
        "Look at the other findings first; if there is none, a whole set of rows was added or removed.";
    DrainBeyondProfit = "drain-beyond-profit", Books, AmountArithmeticInconsistencies, Finding, "drain", 0,
        "More profit was paid out than was earned.",
        "The difference is customers' money: have it paid back into the exchange's account, and refuse further orders.";
    IncomeNegative = "income-negative", Books, AmountArithmeticInconsistencies, Finding, "income", 0,
        "The fees of all operations add up to less than nothing.",
        "A set of rows was added or removed: look at the other findings first.";
    BankShort = "bank-short", Books, AmountArithmeticInconsistencies, Finding, "bank balance", 0,
        "The bank holds less for the exchange than the exchange owes.",
        "The exchange is insolvent: it cannot pay all coins and merchants. Stop withdrawals, and find what left the account.";
    ArchiveCount = "archive-count", Books, RowInconsistencies, Finding, "", 0,
        "The record of an archive is not the sum of its parts, or differs from what removed rows left in the balance sheet.",
        "Compare the records with the archive itself: `batzen exchange archive verify`.";
    RowRewritten = "row-rewritten", Books, RowInconsistencies, Finding, "", 0,
        "A row that never changes was changed after the auditor had seen it.",
        "Compare both versions: somebody rewrote the exchange's history.";
    RowRemoved = "row-removed", Books, RowInconsistencies, Finding, "", 0,
        "A row was removed after the auditor had seen it, and no collection or archive accounts for it.",
        "Restore it: somebody rewrote the exchange's history.";
    RowUnexplained = "row-unexplained", Books, RowInconsistencies, Finding, "", 0,
        "A row changed without a cause.",
        "Compare both versions with the exchange's log.";
    HistoryForked = "history-forked", Books, RowInconsistencies, Finding, "", 0,
        "The exchange shipped one history to the auditor and has another one now.",
        "Keep the signed heads: they prove which history was shipped.";
}

impl Rule {
    /// The rule with this name.
    #[must_use]
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| rule.info().name == name)
    }
}

/// A row of the exchange, for people who want to look at it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct RowName {
    pub table: &'static str,
    /// Its serial number, or 0 if no row is there.
    pub serial: u64,
    /// Its key, or what the finding is about: base32, or text.
    pub key: String,
}

impl RowName {
    /// Names the row of `table` with these key bytes.
    #[must_use]
    pub(crate) fn new(table: &'static TableDef, serial: u64, key: &[u8]) -> Self {
        Self { table: table.name, serial, key: base32::encode(key) }
    }
}

/// One violation of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Where.
    pub row: RowName,
    /// The key that should have signed, or another public key that the finding is about; empty if there is none.
    pub subject: String,
    /// The exchange's figure in units of 10⁻⁸, if there are two.
    pub exchange: i128,
    /// The auditor's figure.
    pub auditor: i128,
    /// The amount at risk, in units of 10⁻⁸.
    pub at_risk: u128,
    /// The difference, in words.
    pub detail: String,
}

impl Finding {
    /// A finding about a row, without amounts.
    #[must_use]
    pub(crate) fn new(rule: Rule, row: RowName) -> Self {
        Self { rule, row, subject: String::new(), exchange: 0, auditor: 0, at_risk: 0, detail: String::new() }
    }

    /// With the key that it is about.
    #[must_use]
    pub(crate) fn about(mut self, subject: &[u8]) -> Self {
        self.subject = base32::encode(subject);
        self
    }

    /// With the amount at risk.
    #[must_use]
    pub(crate) fn risking(mut self, units: u128) -> Self {
        self.at_risk = units;
        self
    }

    /// With two figures that should be equal; their difference is at risk.
    #[must_use]
    pub(crate) fn figures(mut self, exchange: i128, auditor: i128) -> Self {
        (self.exchange, self.auditor) = (exchange, auditor);
        self.at_risk = exchange.abs_diff(auditor);
        self
    }

    /// With an explanation.
    #[must_use]
    pub(crate) fn because(mut self, detail: impl Into<String>) -> Self {
        self.detail = detail.into();
        self
    }

    /// Returns its severity.
    #[must_use]
    pub const fn severity(&self) -> Severity {
        self.rule.info().severity
    }

    /// From the exchange's point of view: 1 gains, −1 loses, 0 neither (auditor chapter 1.5).
    pub(crate) const fn profitable(&self) -> i8 {
        let profit = self.rule.info().profit;
        if self.exchange > self.auditor { profit } else { -profit }
    }

    /// Returns whether it is about the same violation, perhaps with other figures.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.rule == other.rule
            && (self.row.table, &self.row.key) == (other.row.table, &other.row.key)
            && self.subject == other.subject
    }

    /// The sort key of findings in reports: check, table, serial, key.
    pub(crate) fn order(&self) -> (Check, Rule, &'static str, u64, &str) {
        (self.rule.info().check, self.rule, self.row.table, self.row.serial, &self.row.key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn rules_have_names_of_their_own_and_plain_words() {
        let names: HashSet<&str> = Rule::ALL.iter().map(|rule| rule.info().name).collect();
        assert_eq!(names.len(), Rule::ALL.len());
        for rule in Rule::ALL {
            let info = rule.info();
            assert!(info.advice.ends_with('.'), "{}", info.name);
            assert!(info.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", info.name);
        }
    }

    #[test]
    fn the_sign_of_profit_follows_the_larger_figure() {
        let row = RowName { table: "coins", serial: 1, key: String::new() };
        let finding = Finding::new(Rule::MeltCost, row);
        assert_eq!(finding.clone().figures(5, 3).profitable(), 1);
        assert_eq!(finding.clone().figures(3, 5).profitable(), -1);
        assert_eq!(finding.figures(3, 5).at_risk, 2);
    }
}
