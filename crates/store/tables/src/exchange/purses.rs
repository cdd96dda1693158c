//! Payments between people: purses, and the accounts of the reserves that they are merged into.
//!
//! A purse is *open* until exactly one decision is made on it: paid (its target went to a reserve), expired or
//! deleted (each coin was refunded all that it had contributed). Every decision and every deposit changes the purse's
//! row, so that two of them can never miss each other.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{IndexDef, IndexEntries, IndexKind, Table, TableDef, record};

use super::{CoinPub, DenomSerial, PaytoHash, PurseMode, PurseState, ReserveKey, ReservePub};

/// A purse's public key (32 bytes).
pub type PursePub = EddsaPublicKey;

record! {
    /// Identifies a purse.
    pub key struct PurseKey {
        /// Its public key.
        pub purse_pub: PursePub,
    }
}
record! {
    /// A purse.
    pub struct PurseRow {
        /// The key that may merge it into a reserve.
        pub merge_pub: EddsaPublicKey,
        /// The contract.
        pub h_contract_terms: HashCode,
        /// The minimum age of the payer; 0 for none.
        pub min_age: u32,
        /// The way in which it was created.
        pub mode: PurseMode,
        /// The amount that its reserve gets, after deposit fees.
        pub target: Money,
        /// The fee that its reserve paid for it.
        pub purse_fee: Money,
        /// When it was created.
        pub created: Timestamp,
        /// When it expires unless it was paid.
        pub expiration: Timestamp,
        /// The purse's own signature (`WALLET_PURSE_CREATE`).
        pub purse_sig: EddsaSignature,
        /// The number of coins in it.
        pub coins: u32,
        /// The sum of the contributions, deposit fees included.
        pub contributed: Money,
        /// The same less deposit fees.
        pub balance: Money,
        /// Whether and how it was decided.
        pub state: PurseState,
        /// When it was decided; zero while it is open.
        pub decided: Timestamp,
    }
}
/// All purses.
pub struct Purses;
impl Purses {
    /// Open purses by expiration: the queue of the worker that refunds them.
    pub const BY_EXPIRATION: u8 = 1;
}
impl Table for Purses {
    const DEF: &'static TableDef = &TableDef::of::<Self>(40, "purses")
        .updated()
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_EXPIRATION, "by_expiration", IndexKind::Ordered)]);
    type Key = PurseKey;
    type Row = PurseRow;
    fn index_entries(_: &PurseKey, row: &PurseRow, out: &mut IndexEntries) {
        if row.state == PurseState::Open {
            out.add(Self::BY_EXPIRATION, &row.expiration);
        }
    }
}

record! {
    /// Identifies the deposit of a coin into a purse.
    pub key struct PurseDepositKey {
        /// The purse.
        pub purse_pub: PursePub,
        /// The coin.
        pub coin_pub: CoinPub,
    }
}
record! {
    /// The deposit of a coin into a purse.
    pub struct PurseDepositRow {
        /// Its denomination, which determines the deposit fee.
        pub denom: DenomSerial,
        /// Its contribution, deposit fee included.
        pub amount: Money,
        /// The coin's signature (`WALLET_PURSE_DEPOSIT`).
        pub coin_sig: EddsaSignature,
        /// Whether the coin got all of it back.
        pub refunded: bool,
    }
}
/// Deposits into purses.
pub struct PurseDeposits;
impl PurseDeposits {
    /// By purse_pub.
    pub const BY_PURSE: u8 = 1;
    /// By coin_pub.
    pub const BY_COIN: u8 = 2;
}
impl Table for PurseDeposits {
    const DEF: &'static TableDef =
        &TableDef::of::<Self>(41, "purse_deposits").updated().shard(32).indexed(&[
            IndexDef::new(Self::BY_PURSE, "by_purse", IndexKind::Prefix { key_bytes: 32 }),
            IndexDef::new(Self::BY_COIN, "by_coin", IndexKind::Hash),
        ]);
    type Key = PurseDepositKey;
    type Row = PurseDepositRow;
    fn index_entries(key: &PurseDepositKey, _: &PurseDepositRow, out: &mut IndexEntries) {
        out.add(Self::BY_COIN, &key.coin_pub);
    }
}

record! {
    /// The merge of a purse into a reserve. At most one for each purse; it never changes. A purse that a
    /// reserve created is merged before it is paid.
    pub struct PurseMergeRow {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// Hash of the reserve's payto URI.
        pub h_payto: PaytoHash,
        /// The merge key's signature (`WALLET_PURSE_MERGE`).
        pub merge_sig: EddsaSignature,
        /// The reserve's signature (`WALLET_ACCOUNT_MERGE`).
        pub reserve_sig: EddsaSignature,
        /// The time that both signed.
        pub merge_time: Timestamp,
    }
}
/// Merges of purses.
pub struct PurseMerges;
impl PurseMerges {
    /// By reserve_pub.
    pub const BY_RESERVE: u8 = 1;
}
impl Table for PurseMerges {
    const DEF: &'static TableDef = &TableDef::of::<Self>(42, "purse_merges")
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_RESERVE, "by_reserve", IndexKind::Hash)]);
    type Key = PurseKey;
    type Row = PurseMergeRow;
    fn index_entries(_: &PurseKey, row: &PurseMergeRow, out: &mut IndexEntries) {
        out.add(Self::BY_RESERVE, &row.reserve_pub);
    }
}

record! {
    /// The encrypted contract of a purse, which the exchange cannot read.
    pub struct ContractRow {
        /// The key under which it can be fetched.
        pub contract_pub: EddsaPublicKey,
        /// Nonce and ciphertext.
        pub econtract: Vec<u8>,
        /// The purse's signature on both (`WALLET_PURSE_ECONTRACT`).
        pub econtract_sig: EddsaSignature,
    }
}
/// Encrypted contracts. They are dropped with a deleted purse.
pub struct Contracts;
impl Contracts {
    /// By contract_pub. Should two purses name the same key, the earliest serial counts.
    pub const BY_CONTRACT: u8 = 1;
}
impl Table for Contracts {
    const DEF: &'static TableDef = &TableDef::of::<Self>(43, "contracts")
        .updated()
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_CONTRACT, "by_contract", IndexKind::Hash)]);
    type Key = PurseKey;
    type Row = ContractRow;
    fn index_entries(_: &PurseKey, row: &ContractRow, out: &mut IndexEntries) {
        out.add(Self::BY_CONTRACT, &row.contract_pub);
    }
}

record! {
    /// The order to delete a purse.
    pub struct PurseDeletionRow {
        /// The purse's signature (`WALLET_PURSE_DELETE`).
        pub purse_sig: EddsaSignature,
    }
}
/// Orders to delete purses.
pub struct PurseDeletions;
impl Table for PurseDeletions {
    const DEF: &'static TableDef = &TableDef::of::<Self>(44, "purse_deletions").shard(32);
    type Key = PurseKey;
    type Row = PurseDeletionRow;
}

record! {
    /// The purses that a reserve may have for nothing. A reserve without a row has none.
    pub struct ReserveAccountRow {
        /// Number of its open purses that use its quota: at most the quota.
        pub purses_active: u32,
        /// The quota.
        pub purses_allowed: u32,
    }
}
/// Reserves that paid for an account.
pub struct ReserveAccounts;
impl Table for ReserveAccounts {
    const DEF: &'static TableDef = &TableDef::of::<Self>(45, "reserve_accounts").updated().shard(32);
    type Key = ReserveKey;
    type Row = ReserveAccountRow;
}

record! {
    /// Identifies a request of a reserve's owner, by its own time: a repetition has no effect.
    pub key struct ReserveRequestKey {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The request's time.
        pub request_time: Timestamp,
    }
}
record! {
    /// A request that prolonged a reserve or bought purses.
    pub struct ReserveOpenRow {
        /// The reserve's signature (`WALLET_RESERVE_OPEN`).
        pub reserve_sig: EddsaSignature,
        /// The expiration that was asked for.
        pub requested_expiration: Timestamp,
        /// The number of purses that was asked for.
        pub requested_purses: u32,
        /// The fee that the reserve paid; coins may have paid more.
        pub payment: Money,
        /// Its cost.
        pub cost: Money,
        /// The reserve's expiration since then.
        pub expiration: Timestamp,
    }
}
/// Requests that prolonged reserves.
pub struct ReserveOpens;
impl ReserveOpens {
    /// By reserve_pub.
    pub const BY_RESERVE: u8 = 1;
}
impl Table for ReserveOpens {
    const DEF: &'static TableDef = &TableDef::of::<Self>(46, "reserve_opens")
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_RESERVE, "by_reserve", IndexKind::Prefix { key_bytes: 32 })]);
    type Key = ReserveRequestKey;
    type Row = ReserveOpenRow;
}

record! {
    /// Identifies a coin's payment for a reserve.
    pub key struct ReserveOpenDepositKey {
        /// The coin.
        pub coin_pub: CoinPub,
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The time of the request that it paid for.
        pub request_time: Timestamp,
    }
}
record! {
    /// A coin's payment for a reserve.
    pub struct ReserveOpenDepositRow {
        /// Its contribution, deposit fee included.
        pub amount: Money,
        /// The reserve's signature on the request, which the coin signed.
        pub reserve_sig: EddsaSignature,
        /// The coin's signature (`WALLET_RESERVE_OPEN_DEPOSIT`).
        pub coin_sig: EddsaSignature,
    }
}
/// Coins' payments for reserves.
pub struct ReserveOpenDeposits;
impl ReserveOpenDeposits {
    /// By coin_pub.
    pub const BY_COIN: u8 = 1;
}
impl Table for ReserveOpenDeposits {
    const DEF: &'static TableDef = &TableDef::of::<Self>(47, "reserve_open_deposits")
        .shard(32)
        .indexed(&[IndexDef::new(Self::BY_COIN, "by_coin", IndexKind::Prefix { key_bytes: 32 })]);
    type Key = ReserveOpenDepositKey;
    type Row = ReserveOpenDepositRow;
}

record! {
    /// A request to close a reserve.
    pub struct CloseRequestRow {
        /// The reserve's signature (`WALLET_RESERVE_CLOSE`).
        pub reserve_sig: EddsaSignature,
        /// The account that was asked for. `None`: the account of origin.
        pub requested: Option<PaytoHash>,
        /// The account to pay.
        pub h_payto: PaytoHash,
        /// The reserve's balance at that time: the most that is paid, closing fee included.
        pub balance: Money,
        /// Whether it was executed.
        pub done: bool,
    }
}
/// Requests to close reserves.
pub struct CloseRequests;
impl CloseRequests {
    /// By reserve_pub.
    pub const BY_RESERVE: u8 = 1;
    /// Requests not yet executed, in commit order (the value is empty).
    pub const OPEN: u8 = 2;
}
impl Table for CloseRequests {
    const DEF: &'static TableDef =
        &TableDef::of::<Self>(48, "close_requests").updated().shard(32).indexed(&[
            IndexDef::new(Self::BY_RESERVE, "by_reserve", IndexKind::Prefix { key_bytes: 32 }),
            IndexDef::new(Self::OPEN, "open", IndexKind::Serial),
        ]);
    type Key = ReserveRequestKey;
    type Row = CloseRequestRow;
    fn index_entries(_: &ReserveRequestKey, row: &CloseRequestRow, out: &mut IndexEntries) {
        if !row.done {
            out.add_with(Self::OPEN, |_| {});
        }
    }
}
