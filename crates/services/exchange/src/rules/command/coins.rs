//! Commands on coins: deposits, refunds, refreshes, recoups.

use batzen_crypto::{CsNonce, EcdhePublicKey, EddsaSignature, HashCode, ShortHash, WireSalt};
use batzen_protocol::{Money, Timestamp};
use batzen_tables::exchange::{
    BlindSignature, CoinPub, CoinSignature, DenomSerial, FreshCoin, MerchantPub, PaytoHash, RefundKey,
    ReservePub,
};

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
