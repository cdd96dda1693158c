//! Payments between people: purses, and the accounts of the reserves that they are merged into.
//!
//! A purse is *open* until exactly one decision is made on it: paid (its target went to a reserve), expired or
//! deleted (each coin was refunded all that it had contributed). Every decision and every deposit changes the purse's
//! row, so that two of them can never miss each other.

use batzen_crypto::{EddsaPublicKey, EddsaSignature, HashCode};
use batzen_protocol::{Money, Timestamp};
use batzen_store::table;

use super::{CoinPub, DenomSerial, PaytoHash, PurseMode, PurseState, ReserveKey, ReservePub};

/// A purse's public key (32 bytes).
pub type PursePub = EddsaPublicKey;

table! {
    /// Identifies a purse.
    pub key struct PurseKey {
        /// Its public key.
        pub purse_pub: PursePub,
    }

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

    /// All purses.
    pub Purses(40, "purses"): PurseKey => PurseRow, updated(), shard(32);
    /// Open purses by expiration: the queue of the worker that refunds them.
    BY_EXPIRATION = 1, "by_expiration", Ordered;
    |_, row, out| {
        if row.state == PurseState::Open {
            out.add(Self::BY_EXPIRATION, &row.expiration);
        }
    }
}

table! {
    /// Identifies the deposit of a coin into a purse.
    pub key struct PurseDepositKey {
        /// The purse.
        pub purse_pub: PursePub,
        /// The coin.
        pub coin_pub: CoinPub,
    }

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

    /// Deposits into purses.
    pub PurseDeposits(41, "purse_deposits"): PurseDepositKey => PurseDepositRow, updated(), shard(32);
    /// By purse_pub.
    BY_PURSE = 1, "by_purse", Prefix { key_bytes: 32 };
    /// By coin_pub.
    BY_COIN = 2, "by_coin", Hash;
    |key, _, out| {
        out.add(Self::BY_COIN, &key.coin_pub);
    }
}

table! {
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

    /// Merges of purses.
    pub PurseMerges(42, "purse_merges"): PurseKey => PurseMergeRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Hash;
    |_, row, out| {
        out.add(Self::BY_RESERVE, &row.reserve_pub);
    }
}

table! {
    /// The encrypted contract of a purse, which the exchange cannot read.
    pub struct ContractRow {
        /// The key under which it can be fetched.
        pub contract_pub: EddsaPublicKey,
        /// Nonce and ciphertext.
        pub econtract: Vec<u8>,
        /// The purse's signature on both (`WALLET_PURSE_ECONTRACT`).
        pub econtract_sig: EddsaSignature,
    }

    /// Encrypted contracts. They are dropped with a deleted purse.
    pub Contracts(43, "contracts"): PurseKey => ContractRow, updated(), shard(32);
    /// By contract_pub. Should two purses name the same key, the earliest serial counts.
    BY_CONTRACT = 1, "by_contract", Hash;
    |_, row, out| {
        out.add(Self::BY_CONTRACT, &row.contract_pub);
    }
}

table! {
    /// The order to delete a purse.
    pub struct PurseDeletionRow {
        /// The purse's signature (`WALLET_PURSE_DELETE`).
        pub purse_sig: EddsaSignature,
    }

    /// Orders to delete purses.
    pub PurseDeletions(44, "purse_deletions"): PurseKey => PurseDeletionRow, shard(32);
}

table! {
    /// The purses that a reserve may have for nothing. A reserve without a row has none.
    pub struct ReserveAccountRow {
        /// Number of its open purses that use its quota: at most the quota.
        pub purses_active: u32,
        /// The quota.
        pub purses_allowed: u32,
    }

    /// Reserves that paid for an account.
    pub ReserveAccounts(45, "reserve_accounts"): ReserveKey => ReserveAccountRow, updated(), shard(32);
}

table! {
    /// Identifies a request of a reserve's owner, by its own time: a repetition has no effect.
    pub key struct ReserveRequestKey {
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The request's time.
        pub request_time: Timestamp,
    }

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

    /// Requests that prolonged reserves.
    pub ReserveOpens(46, "reserve_opens"): ReserveRequestKey => ReserveOpenRow, shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
}

table! {
    /// Identifies a coin's payment for a reserve.
    pub key struct ReserveOpenDepositKey {
        /// The coin.
        pub coin_pub: CoinPub,
        /// The reserve.
        pub reserve_pub: ReservePub,
        /// The time of the request that it paid for.
        pub request_time: Timestamp,
    }

    /// A coin's payment for a reserve.
    pub struct ReserveOpenDepositRow {
        /// Its contribution, deposit fee included.
        pub amount: Money,
        /// The reserve's signature on the request, which the coin signed.
        pub reserve_sig: EddsaSignature,
        /// The coin's signature (`WALLET_RESERVE_OPEN_DEPOSIT`).
        pub coin_sig: EddsaSignature,
    }

    /// Coins' payments for reserves.
    pub ReserveOpenDeposits(47, "reserve_open_deposits"): ReserveOpenDepositKey => ReserveOpenDepositRow,
        shard(32);
    /// By coin_pub.
    BY_COIN = 1, "by_coin", Prefix { key_bytes: 32 };
}

table! {
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

    /// Requests to close reserves.
    pub CloseRequests(48, "close_requests"): ReserveRequestKey => CloseRequestRow, updated(), shard(32);
    /// By reserve_pub.
    BY_RESERVE = 1, "by_reserve", Prefix { key_bytes: 32 };
    /// Requests not yet executed, in commit order (the value is empty).
    OPEN = 2, "open", Serial;
    |_, row, out| {
        if !row.done {
            out.add_with(Self::OPEN, |_| {});
        }
    }
}
