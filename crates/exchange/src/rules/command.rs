//! Commands to the rules, and their outcomes.
//!
//! All amounts are in the exchange's currency. All signatures of a request have been verified.

use batzen_crypto::{
    CsNonce, EcdhePublicKey, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, WireSalt, Wtid,
};
use batzen_protocol::{Duration, Money, Timestamp};
use batzen_tables::exchange::{
    AccountId, BlindSignature, CoinPub, CoinSignature, DenomSerial, DepositTarget, FreshCoin, LeaseJob,
    MerchantPub, PaytoHash, PurseMergeRow, PurseMode, PursePub, PurseRow, PurseState, RefundKey, ReservePub,
};

use super::leases::Slots;
use super::management;

/// A change of money state, or of the key set.
#[derive(Debug, Clone)]
pub enum Command {
    /// Coins from a reserve.
    Withdraw(Withdraw),
    /// The fee of a full reserve history.
    ReserveHistory(ReserveHistory),
    /// Incoming transfers.
    Credits(Credits),
    /// Return an expired reserve's money.
    CloseReserve(CloseReserve),
    /// Coins for a contract.
    Deposit(Deposit),
    /// Money back from a merchant.
    Refund(Refund),
    /// Begin a refresh.
    Melt(Melt),
    /// Finish the refresh.
    Reveal(Reveal),
    /// A coin of a revoked denomination goes back to its reserve.
    Recoup(Recoup),
    /// A coin of a revoked denomination goes back to the coin that it was changed from.
    RecoupRefresh(RecoupRefresh),
    /// A payer creates a purse with coins.
    PurseCreate(PurseCreate),
    /// Coins for a purse.
    PurseDeposit(PurseDeposit),
    /// A reserve takes a full purse.
    PurseMerge(PurseMerge),
    /// A reserve creates a purse for others to pay into.
    ReservePurse(ReservePurse),
    /// The owner of a purse deletes it.
    PurseDelete(PurseDelete),
    /// An expired purse gives its coins their money back.
    PurseExpire(PurseExpire),
    /// Prolong a reserve, or buy purses.
    ReserveOpen(ReserveOpen),
    /// The owner of a reserve wants it closed.
    RequestClose(RequestClose),
    /// Deposits of a merchant become a transfer.
    Aggregate(Aggregate),
    /// Record transfers that the bank accepted.
    TransfersDone(TransfersDone),
    /// Record that the bank refused a transfer for good.
    TransferFailed(TransferFailed),
    /// Retry a failed transfer, by order of an operator.
    TransferRetry(TransferRetry),
    /// An order to pay out profit becomes a transfer.
    ExecuteDrain(ExecuteDrain),
    /// A change of the key set.
    Management(management::Command),
    /// Leases of workers.
    Lease(Lease),
}

/// The answer to a command that took effect, now or before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// To [`Command::Withdraw`].
    Withdraw(Withdrawn),
    /// To [`Command::ReserveHistory`].
    ReserveHistory(HistoryPaid),
    /// To [`Command::Credits`].
    Credits(Credited),
    /// To [`Command::CloseReserve`].
    CloseReserve(Closed),
    /// To [`Command::Deposit`].
    Deposit(Deposited),
    /// To [`Command::Refund`].
    Refund(Refunded),
    /// To [`Command::Melt`].
    Melt(Melted),
    /// To [`Command::Reveal`].
    Reveal(Revealed),
    /// To [`Command::Recoup`].
    Recoup(Recouped),
    /// To [`Command::RecoupRefresh`].
    RecoupRefresh(RecoupRefreshed),
    /// To [`Command::PurseCreate`] and [`Command::ReservePurse`].
    PurseCreate(PurseCreated),
    /// To [`Command::PurseDeposit`].
    PurseDeposit(PurseDeposited),
    /// To [`Command::PurseMerge`].
    PurseMerge(PurseMerged),
    /// To [`Command::PurseDelete`].
    PurseDelete(PurseDeleted),
    /// To [`Command::PurseExpire`].
    PurseExpire(PurseExpired),
    /// To [`Command::ReserveOpen`].
    ReserveOpen(ReserveOpened),
    /// To [`Command::RequestClose`].
    RequestClose(CloseRequested),
    /// To [`Command::Aggregate`].
    Aggregate(Aggregated),
    /// To [`Command::TransfersDone`], [`Command::TransferFailed`] and [`Command::TransferRetry`].
    Transfer(TransferMarked),
    /// To [`Command::ExecuteDrain`].
    Drain(Drained),
    /// To [`Command::Management`].
    Management(management::Outcome),
    /// To [`Command::Lease`].
    Lease(Leased),
}

/// A command with the type of its outcome.
pub trait TypedCommand: Into<Command> {
    /// Its outcome.
    type Outcome;

    /// Extracts the outcome from the rules' answer.
    ///
    /// # Panics
    /// If it is the outcome of another command, which is a bug in the rules.
    fn outcome(answer: Outcome) -> Self::Outcome;
}

impl TypedCommand for Command {
    type Outcome = Outcome;

    fn outcome(answer: Outcome) -> Outcome {
        answer
    }
}

macro_rules! typed_commands {
    ($($command:path => $variant:ident($typed:path), $outcome:path;)*) => {$(
        impl From<$command> for Command {
            fn from(command: $command) -> Self {
                Self::$variant(command)
            }
        }

        impl TypedCommand for $command {
            type Outcome = $outcome;

            fn outcome(answer: Outcome) -> $outcome {
                match answer {
                    $typed(outcome) => outcome,
                    other => panic!("the rules answered {} with {other:?}", stringify!($command)),
                }
            }
        }
    )*};
}

typed_commands! {
    Withdraw => Withdraw(Outcome::Withdraw), Withdrawn;
    ReserveHistory => ReserveHistory(Outcome::ReserveHistory), HistoryPaid;
    Credits => Credits(Outcome::Credits), Credited;
    CloseReserve => CloseReserve(Outcome::CloseReserve), Closed;
    Deposit => Deposit(Outcome::Deposit), Deposited;
    Refund => Refund(Outcome::Refund), Refunded;
    Melt => Melt(Outcome::Melt), Melted;
    Reveal => Reveal(Outcome::Reveal), Revealed;
    Recoup => Recoup(Outcome::Recoup), Recouped;
    RecoupRefresh => RecoupRefresh(Outcome::RecoupRefresh), RecoupRefreshed;
    PurseCreate => PurseCreate(Outcome::PurseCreate), PurseCreated;
    PurseDeposit => PurseDeposit(Outcome::PurseDeposit), PurseDeposited;
    PurseMerge => PurseMerge(Outcome::PurseMerge), PurseMerged;
    ReservePurse => ReservePurse(Outcome::PurseCreate), PurseCreated;
    PurseDelete => PurseDelete(Outcome::PurseDelete), PurseDeleted;
    PurseExpire => PurseExpire(Outcome::PurseExpire), PurseExpired;
    ReserveOpen => ReserveOpen(Outcome::ReserveOpen), ReserveOpened;
    RequestClose => RequestClose(Outcome::RequestClose), CloseRequested;
    Aggregate => Aggregate(Outcome::Aggregate), Aggregated;
    TransfersDone => TransfersDone(Outcome::Transfer), TransferMarked;
    TransferFailed => TransferFailed(Outcome::Transfer), TransferMarked;
    TransferRetry => TransferRetry(Outcome::Transfer), TransferMarked;
    ExecuteDrain => ExecuteDrain(Outcome::Drain), Drained;
    management::Command => Management(Outcome::Management), management::Outcome;
    Lease => Lease(Outcome::Lease), Leased;
}

// --- Reserves
// -------------------------------------------------------------------------------------------------------

/// One planchet of a withdrawal.
#[derive(Debug, Clone)]
pub struct Planchet {
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of the blinded planchet and the denomination.
    pub h_coin_ev: HashCode,
    /// The reserve's signature on it, verified.
    pub reserve_sig: EddsaSignature,
    /// The blind signature, made in advance, and dropped if the withdrawal is refused or is a repetition.
    /// Without it, a withdrawal that could be paid is refused with [`super::Refusal::SignatureMissing`]. So a
    /// request that will probably be refused costs no signature.
    pub ev_sig: Option<BlindSignature>,
    /// Clause Blind Schnorr only: the planchet's nonce.
    pub nonce: Option<CsNonce>,
}

/// Withdraws coins, for `/withdraw` (one planchet) and `/batch-withdraw`. All or nothing; a complete
/// repetition returns the stored signatures and charges nothing.
#[derive(Debug, Clone)]
pub struct Withdraw {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// 1 to 256 planchets, all different.
    pub planchets: Vec<Planchet>,
    /// Whether this is `/batch-withdraw`, which accepts only reserves that had a wire credit.
    pub batch: bool,
}

/// The coins of a withdrawal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawn {
    /// Their signatures as stored, in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
    /// Whether all of them had been withdrawn before.
    pub repeated: bool,
}

/// Charges for a full reserve history. The history itself is read afterwards (`reserve_statement`).
#[derive(Debug, Clone)]
pub struct ReserveHistory {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each time is charged once.
    pub request_time: Timestamp,
    /// The history fee that the request signed (that of the global fee period of `request_time`).
    pub fee: Money,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// The history fee is paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryPaid {
    /// Whether the fee was charged now; false if it is zero or was paid before.
    pub charged: bool,
}

/// One incoming transfer.
#[derive(Debug, Clone)]
pub struct Credit {
    /// Its row at the bank.
    pub bank_row: u64,
    /// The reserve named in its subject.
    pub reserve_pub: ReservePub,
    /// How much.
    pub amount: Money,
    /// The sender's payto URI.
    pub payto_uri: String,
    /// Its hash.
    pub h_payto: PaytoHash,
    /// When the bank executed it.
    pub time: Timestamp,
}

/// Books a page of incoming transfers and moves the cursor, in one commit. Rows booked before are skipped.
#[derive(Debug, Clone)]
pub struct Credits {
    /// The exchange's account that received them.
    pub account: AccountId,
    /// The transfers, in the order of bank rows. May be empty (rows without a reserve in their subject).
    pub credits: Vec<Credit>,
    /// The last bank row of the page. The cursor never moves back.
    pub cursor: u64,
    /// The progress of the watcher's range of bank rows, if it has leased one. The cursor then follows the
    /// ranges.
    pub range: Option<RangeProgress>,
}

/// The outcome of [`Credits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credited {
    /// The reserves credited now, each once. Their waiters must be woken.
    pub reserves: Vec<ReservePub>,
    /// How many transfers were booked now.
    pub booked: usize,
    /// The state of the range, if the command named one.
    pub range: Option<RangeState>,
}

/// Closes one reserve and prepares the transfer of its money: an expired reserve to its origin, which never
/// changes once set, or by its owner's request to the account that the request names. The caller has read the
/// account and its payto URI.
#[derive(Debug, Clone)]
pub struct CloseReserve {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The time of the owner's request; none for an expired reserve.
    pub request_time: Option<Timestamp>,
    /// The account to pay.
    pub h_payto: PaytoHash,
    /// The method of that account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 32 random bytes, used from the reserve's second closing on. The first closing uses the reserve's
    /// public key.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The outcome of [`CloseReserve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The reserve is unknown, empty or not (or no longer) expired, or the request was executed. Nothing changed.
    NotDue,
    /// The reserve is empty, so the owner's request is done.
    Empty,
    /// The reserve is closed; what came in after the owner's request stays.
    Closed {
        /// The transfer's identifier.
        wtid: Wtid,
        /// Its balance before.
        amount: Money,
        /// The closing fee, at most the amount.
        fee: Money,
        /// The wired amount; zero if no transfer was prepared.
        paid: Money,
    },
}

// --- Coins
// ----------------------------------------------------------------------------------------------------------

/// A coin in a request. Its denomination's signature was verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresentedCoin {
    /// Its public key.
    pub coin_pub: CoinPub,
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of its age commitment. Pass `None` if it is all zero, which means that there is none.
    pub h_age: Option<ShortHash>,
    /// The denomination's signature on it.
    pub denom_sig: CoinSignature,
}

/// One coin of a deposit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DepositCoin {
    /// The coin.
    pub coin: PresentedCoin,
    /// The contribution, including the deposit fee.
    pub contribution: Money,
    /// Its signature on the deposit, verified.
    pub coin_sig: EddsaSignature,
}

/// Pays a contract, for `/deposit` (one coin) and `/batch-deposit`. All or nothing.
#[derive(Debug, Clone)]
pub struct Deposit {
    /// The merchant.
    pub merchant_pub: MerchantPub,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The merchant's account.
    pub payto_uri: String,
    /// Its hash.
    pub h_payto: PaytoHash,
    /// Salt of the hash of that account.
    pub wire_salt: WireSalt,
    /// The wallet's time.
    pub wallet_time: Timestamp,
    /// The refund deadline, at most the wire deadline. Zero: no refunds.
    pub refund_deadline: Timestamp,
    /// The wire deadline; must not be never. A time in the past means as soon as possible.
    pub wire_deadline: Timestamp,
    /// 1 to 256 coins.
    pub coins: Vec<DepositCoin>,
}

/// An accepted deposit: the values that the confirmations cover besides the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deposited {
    /// When the exchange first accepted any of the coins: the timestamp of all confirmations.
    pub exchange_time: Timestamp,
    /// The coins, in the order of the request.
    pub coins: Vec<DepositedCoin>,
}

/// One coin of an accepted deposit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DepositedCoin {
    /// The wire deadline in force: that of the first acceptance.
    pub wire_deadline: Timestamp,
    /// The contribution less the deposit fee.
    pub amount_without_fee: Money,
    /// Whether it had been deposited before.
    pub repeated: bool,
}

/// Returns money of a deposit to its coin.
#[derive(Debug, Clone)]
pub struct Refund {
    /// The deposit and the merchant's number of the refund.
    pub key: RefundKey,
    /// How much, including the refund fee.
    pub amount: Money,
    /// The merchant's signature, verified.
    pub merchant_sig: EddsaSignature,
}

/// An accepted refund.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refunded {
    /// Whether it had been accepted before.
    pub repeated: bool,
}

/// Melts a coin: takes value from it to pay for fresh coins.
#[derive(Debug, Clone)]
pub struct Melt {
    /// The old coin.
    pub coin: PresentedCoin,
    /// The melted amount, including the melt fee.
    pub amount: Money,
    /// The refresh commitment.
    pub rc: HashCode,
    /// The coin's signature, verified.
    pub coin_sig: EddsaSignature,
    /// 0, 1 or 2, drawn uniformly; used only if the melt is new.
    pub noreveal_index: u8,
    /// The refresh master secret, if any fresh coin is Clause Blind Schnorr.
    pub rms: Option<CsNonce>,
}

/// An accepted melt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Melted {
    /// The index as stored.
    pub noreveal_index: u8,
    /// Whether it had been accepted before.
    pub repeated: bool,
}

/// Finishes a refresh. The commitment has been recomputed and matches; the link signatures have been
/// verified.
#[derive(Debug, Clone)]
pub struct Reveal {
    /// The old coin: `melt_by_rc` finds it.
    pub coin_pub: CoinPub,
    /// The refresh commitment.
    pub rc: HashCode,
    /// The transfer key of the index that stays secret.
    pub transfer_pub: EcdhePublicKey,
    /// The two revealed transfer private keys in the order of their indexes.
    pub transfer_privs: [u8; 64],
    /// The refresh master secret; required if a fresh coin is Clause Blind Schnorr.
    pub rms: Option<CsNonce>,
    /// 1 to 255 fresh coins with their blind signatures, which are dropped if the command is refused or is a
    /// repetition.
    pub fresh: Vec<FreshCoin>,
}

/// The coins of a refresh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revealed {
    /// Their signatures as stored, in the order of the request.
    pub ev_sigs: Vec<BlindSignature>,
    /// Whether the melt had been revealed before.
    pub repeated: bool,
}

/// Takes back a withdrawn coin of a revoked denomination.
#[derive(Debug, Clone)]
pub struct Recoup {
    /// The coin.
    pub coin: PresentedCoin,
    /// Its blinding secret.
    pub coin_blind: [u8; 32],
    /// Its signature, verified.
    pub coin_sig: EddsaSignature,
    /// Hash of the planchet, recomputed from the coin and the blinding secret.
    pub h_coin_ev: HashCode,
    /// The reserve that withdrew it: `withdrawal_of` finds it.
    pub reserve_pub: ReservePub,
}

/// A coin went back to its reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recouped {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// How much went back. For a repetition: how much went back the last time.
    pub amount: Money,
    /// When.
    pub time: Timestamp,
    /// Whether the coin had been recouped before, so that nothing was left.
    pub repeated: bool,
}

/// Takes back a coin of a revoked denomination that was obtained by refresh.
#[derive(Debug, Clone)]
pub struct RecoupRefresh {
    /// The fresh coin.
    pub coin: PresentedCoin,
    /// Its blinding secret.
    pub coin_blind: [u8; 32],
    /// Its signature, verified.
    pub coin_sig: EddsaSignature,
    /// Hash of the planchet, recomputed from the coin and the blinding secret.
    pub h_coin_ev: HashCode,
    /// The coin that it was changed from: `reveal_of` finds both this coin and the commitment.
    pub old_coin_pub: CoinPub,
    /// The commitment of that melt.
    pub rc: HashCode,
}

/// A coin went back to the coin that it was changed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoupRefreshed {
    /// The old coin.
    pub old_coin_pub: CoinPub,
    /// How much went back. For a repetition: how much went back the last time.
    pub amount: Money,
    /// When.
    pub time: Timestamp,
    /// Whether the coin had been recouped before, so that nothing was left.
    pub repeated: bool,
}

// --- Purses
// ---------------------------------------------------------------------------------------------------------

/// The terms of a purse, signed by its own key (verified).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseTerms {
    /// The key that may merge it.
    pub merge_pub: EddsaPublicKey,
    /// The contract.
    pub h_contract_terms: HashCode,
    /// The minimum age of the payer; 0 for none.
    pub min_age: u32,
    /// What its reserve gets, after deposit fees.
    pub target: Money,
    /// When it expires.
    pub expiration: Timestamp,
    /// The purse's signature.
    pub purse_sig: EddsaSignature,
}

impl PurseTerms {
    /// The row of a new purse.
    pub(super) fn row(&self, mode: PurseMode, purse_fee: Money, now: Timestamp) -> PurseRow {
        PurseRow {
            merge_pub: self.merge_pub,
            h_contract_terms: self.h_contract_terms,
            min_age: self.min_age,
            mode,
            target: self.target,
            purse_fee,
            created: now,
            expiration: self.expiration,
            purse_sig: self.purse_sig,
            coins: 0,
            contributed: Money::ZERO,
            balance: Money::ZERO,
            state: PurseState::Open,
            decided: Timestamp::ZERO,
        }
    }
}

/// An encrypted contract, signed by its purse (verified).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// The key under which it can be fetched.
    pub contract_pub: EddsaPublicKey,
    /// Nonce and ciphertext.
    pub econtract: Vec<u8>,
    /// The purse's signature.
    pub econtract_sig: EddsaSignature,
}

/// A coin that pays into a purse, or for a reserve. An attestation of its age, if the purse needs one, was
/// verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseCoin {
    /// The coin.
    pub coin: PresentedCoin,
    /// The contribution, deposit fee included.
    pub amount: Money,
    /// Its signature on the payment, verified.
    pub coin_sig: EddsaSignature,
}

/// Creates a purse and pays into it. The same terms again are the same purse; coins that it contains already
/// have no further effect.
#[derive(Debug, Clone)]
pub struct PurseCreate {
    /// The purse.
    pub purse_pub: PursePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The reserve that it is merged into, if it existed before and was merged.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
    /// The contract for its receiver.
    pub contract: Option<Contract>,
}

/// A purse exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseCreated {
    /// When it expires: as it was created first.
    pub expiration: Timestamp,
    /// What the coins of the request add up to, deposit fees taken off.
    pub deposited: Money,
}

/// Pays into a purse.
#[derive(Debug, Clone)]
pub struct PurseDeposit {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// 1 to 256 coins.
    pub coins: Vec<PurseCoin>,
}

/// Coins are in a purse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseDeposited {
    /// The purse.
    pub purse: PurseRow,
    /// What it contains, deposit fees taken off.
    pub total: Money,
    /// The reserve that got its target now.
    pub credited: Option<ReservePub>,
}

/// Merges a full purse into a reserve.
#[derive(Debug, Clone)]
pub struct PurseMerge {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
}

/// A purse is merged and paid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PurseMerged {
    /// The purse.
    pub purse: PurseRow,
    /// Whether it was merged now.
    pub is_new: bool,
}

/// Creates a purse that is merged into a reserve before anybody has paid.
#[derive(Debug, Clone)]
pub struct ReservePurse {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// Its terms.
    pub terms: PurseTerms,
    /// The purse fee, which the reserve pays; none if the purse uses the reserve's quota.
    pub fee: Option<Money>,
    /// The row to store, with both signatures verified.
    pub merge: PurseMergeRow,
    /// The contract for its payer.
    pub contract: Option<Contract>,
}

/// Deletes an open purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseDelete {
    /// The purse.
    pub purse_pub: PursePub,
    /// The purse's signature, verified.
    pub purse_sig: EddsaSignature,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// A purse is deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PurseDeleted;

/// Gives back what is in an expired purse. The caller has read its reserve and its coins.
#[derive(Debug, Clone)]
pub struct PurseExpire {
    /// The purse.
    pub purse_pub: PursePub,
    /// The reserve that it is merged into, if it is.
    pub reserve_pub: Option<ReservePub>,
    /// All coins in it.
    pub coins: Vec<CoinPub>,
}

/// The outcome of [`PurseExpire`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PurseExpired {
    /// It is unknown, decided or not expired. Nothing changed.
    NotDue,
    /// The coins have their money back.
    Expired,
}

// --- Accounts
// -------------------------------------------------------------------------------------------------------

/// Prolongs a reserve, or buys purses for it. Each time of a request counts once.
#[derive(Debug, Clone)]
pub struct ReserveOpen {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time.
    pub request_time: Timestamp,
    /// The wanted expiration.
    pub reserve_expiration: Timestamp,
    /// The wanted number of purses.
    pub purse_limit: u32,
    /// What the reserve itself pays.
    pub payment: Money,
    /// The account fee at the request's time.
    pub account_fee: Money,
    /// Coins that pay the rest: at most 256.
    pub coins: Vec<PurseCoin>,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve is open as long as wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveOpened {
    /// Until when.
    pub expiration: Timestamp,
    /// What it cost.
    pub cost: Money,
}

/// Asks for a reserve's money to be paid out. The closer executes it.
#[derive(Debug, Clone)]
pub struct RequestClose {
    /// The reserve.
    pub reserve_pub: ReservePub,
    /// The request's time. Each counts once.
    pub request_time: Timestamp,
    /// The account that the owner named; none for the account of origin.
    pub requested: Option<PaytoHash>,
    /// The account to pay: the named one, or that of origin.
    pub h_payto: PaytoHash,
    /// Its payto URI.
    pub payto_uri: String,
    /// Its method.
    pub method: String,
    /// The reserve's signature, verified.
    pub reserve_sig: EddsaSignature,
}

/// A reserve will be closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CloseRequested {
    /// What will be paid. Zero: less than the fee is there, and nothing will happen.
    pub wired: Money,
}

// --- Transfers
// ------------------------------------------------------------------------------------------------------

/// The reason for an aggregation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// At least one of the deposits is due. If none is, nothing changes.
    Due,
    /// The next part of an interrupted unit, or a transient aggregate whose KYC hold may have ended.
    Continued,
}

/// Aggregates open deposits of one merchant into one account: those whose refund deadline has passed, oldest
/// deadline first.
#[derive(Debug, Clone)]
pub struct Aggregate {
    /// The merchant and the account.
    pub target: DepositTarget,
    /// The method of the account's payto URI.
    pub method: String,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// Deposits that may still be refunded after this moment are left out.
    pub until: Timestamp,
    /// The maximum number of deposits to aggregate: 1 to [`super::transfers::AGGREGATE_DEPOSITS_MAX`].
    pub deposits_max: usize,
    /// The reason.
    pub trigger: Trigger,
    /// Whether to pay the transfer although more deposits of the unit are left. Otherwise the sum waits for
    /// them.
    pub complete: bool,
    /// The transient aggregate's identifier if there is one (`transient`), otherwise 32 random bytes.
    pub wtid: Wtid,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
    /// The KYC requirement that forbids payment now, if any.
    pub kyc_hold: Option<u64>,
}

/// The outcome of [`Aggregate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aggregated {
    /// Nothing is due.
    Nothing,
    /// The sum waits because it is too small, it is held back, or more deposits follow.
    Transient {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The sum so far, before the wire fee.
        total: Money,
        /// Whether the sum waits for further deposits of the unit.
        more: bool,
    },
    /// A transfer is prepared.
    Prepared {
        /// The number of deposits aggregated now.
        taken: usize,
        /// The wired amount.
        amount: Money,
    },
}

/// Marks transfers as accepted by the bank: all or none.
#[derive(Debug, Clone)]
pub struct TransfersDone {
    /// Their identifiers.
    pub wtids: Vec<Wtid>,
}

/// Marks a transfer as failed. It is not retried until an operator orders it.
#[derive(Debug, Clone)]
pub struct TransferFailed {
    /// Its identifier.
    pub wtid: Wtid,
    /// The reason, for the operator.
    pub reason: String,
}

/// Puts a failed transfer back into the queue.
#[derive(Debug, Clone, Copy)]
pub struct TransferRetry {
    /// Its identifier.
    pub wtid: Wtid,
}

/// The state of transfers was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferMarked {
    /// Whether any changed.
    pub changed: bool,
}

/// Prepares the transfer of an order to pay out profit. The order's signature has been verified.
#[derive(Debug, Clone)]
pub struct ExecuteDrain {
    /// The order's identifier.
    pub wtid: Wtid,
    /// Hash of its receiver's payto URI.
    pub h_payto: PaytoHash,
    /// The exchange's account that pays.
    pub account: AccountId,
    /// 64 random bytes: identifies the transfer at the bank.
    pub request_uid: HashCode,
}

/// The outcome of [`ExecuteDrain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Drained {
    /// The paid amount.
    pub amount: Money,
    /// Whether it had been executed before.
    pub repeated: bool,
}

/// A worker claims, renews or returns its part of a job. See [`super::leases`].
#[derive(Debug, Clone)]
pub enum Lease {
    /// A range of an account's bank rows.
    Range(RangeClaim),
    /// Slots of a queue.
    Slots(SlotsClaim),
}

/// To a [`Lease`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leased {
    /// The range; none for a watcher that leaves.
    Range(Option<RangeState>),
    /// The slots.
    Slots(SlotsShare),
}

/// Claims the first range of an account that no other watcher holds, or a new range after the others. It
/// replaces the watcher's current range.
#[derive(Debug, Clone, Copy)]
pub struct RangeClaim {
    /// The account.
    pub account: AccountId,
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// How many rows a new range has, measured as the distance of their ids.
    pub size: u64,
}

/// The progress of a watcher's range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeProgress {
    /// The watcher.
    pub holder: u64,
    /// The watcher's time, without any shift of the clock.
    pub now: Timestamp,
    /// How long it continues to hold the range.
    pub lease: Duration,
    /// Where the range starts.
    pub start: u64,
    /// The last row up to which all rows are imported.
    pub latest: u64,
    /// If the range is complete: the id up to which there are no more rows.
    pub seen_until: Option<u64>,
}

/// A range that is not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeState {
    /// The row after which it starts.
    pub start: u64,
    /// The last row that it may contain.
    pub end: u64,
    /// The last row that was imported.
    pub latest: u64,
    /// Whether everything before it is imported.
    pub is_first: bool,
    /// Whether the watcher holds it.
    pub is_ours: bool,
    /// Whether other watchers hold ranges.
    pub has_others: bool,
}

/// A worker's slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlotsShare {
    /// The slots that it holds.
    pub slots: Slots,
    /// Whether it holds more than its share.
    pub has_excess: bool,
}

/// Takes or keeps a worker's share of a queue's slots.
#[derive(Debug, Clone, Copy)]
pub struct SlotsClaim {
    /// The queue.
    pub job: LeaseJob,
    /// The worker: any number but 0, below 2^63.
    pub holder: u64,
    /// The worker's time, without any shift of the clock.
    pub now: Timestamp,
    /// The lease's duration. None: the worker leaves.
    pub lease: Option<Duration>,
    /// Whether it returns slots beyond its share.
    pub gives: bool,
}
