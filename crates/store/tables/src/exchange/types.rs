//! Types that occur in several tables.

use batzen_crypto::{CsRPub, EddsaPublicKey, EddsaSignature, HashCode, ShortHash, hash};
use batzen_protocol::{Money, Timestamp};
use batzen_store::{Column, ColumnKind, ColumnType, DecodeError, put_bytes, take_array, take_bytes};

/// A reserve's public key (32 bytes).
pub type ReservePub = EddsaPublicKey;
/// A coin's public key (32 bytes).
pub type CoinPub = EddsaPublicKey;
/// A merchant's public key (32 bytes).
pub type MerchantPub = EddsaPublicKey;
/// Hash of a payto URI (32 bytes): identifies a bank account.
pub type PaytoHash = ShortHash;

/// Identifies a denomination in rows: counted from 1 in the order of master signatures. The 64-byte hash is
/// only in the denominations table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DenomSerial(pub u32);

impl Column for DenomSerial {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::U32);
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(u32::decode(input)?))
    }
}

/// Identifies one of the exchange's own bank accounts: the first 8 bytes of the hash of its payto URI without
/// the query part, so that a renamed configuration section or a new receiver name does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AccountId(pub [u8; 8]);

impl AccountId {
    /// The account at this payto URI.
    #[must_use]
    pub fn of_payto(payto_uri: &str) -> Self {
        let bare = payto_uri.split('?').next().unwrap_or(payto_uri);
        let digest = hash::sha512(bare.as_bytes());
        Self(*digest.as_bytes().first_chunk().expect("64 bytes hold 8"))
    }
}

impl Column for AccountId {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Fixed(8));
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        Ok(Self(take_array(input, "account")?))
    }
}

/// The exchange's signature on a planchet, still blinded: the answer to a withdrawal or reveal.
pub use batzen_crypto::BlindedDenomSignature as BlindSignature;
/// The cipher of a denomination.
pub use batzen_crypto::Cipher;
/// The denomination's unblinded signature on a coin, which proves the coin's value.
pub use batzen_crypto::DenomSignature as CoinSignature;

/// One fresh coin of a reveal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FreshCoin {
    /// Its denomination.
    pub denom: DenomSerial,
    /// Hash of its blinded planchet and denomination.
    pub h_coin_ev: HashCode,
    /// The old coin's signature on the link (`WALLET_COIN_LINK`).
    pub link_sig: EddsaSignature,
    /// The blind signature.
    pub ev_sig: BlindSignature,
    /// Clause Blind Schnorr only: the two R values of the signature, for `/link` after the private key was
    /// destroyed.
    pub r_pubs: Option<(CsRPub, CsRPub)>,
}

/// All fresh coins of one reveal, in the order of the request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct FreshCoins(pub Vec<FreshCoin>);

impl Column for FreshCoins {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        let mut inner = Vec::with_capacity(self.0.len() * 400);
        for coin in &self.0 {
            coin.denom.encode(&mut inner);
            coin.h_coin_ev.encode(&mut inner);
            coin.link_sig.encode(&mut inner);
            coin.ev_sig.encode(&mut inner);
            coin.r_pubs.is_some().encode(&mut inner);
            if let Some((r0, r1)) = &coin.r_pubs {
                r0.encode(&mut inner);
                r1.encode(&mut inner);
            }
        }
        put_bytes(&inner, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let inner = take_bytes(input, "fresh coins")?;
        let mut rest = inner.as_slice();
        let input = &mut rest;
        let mut coins = Vec::new();
        while !input.is_empty() {
            coins.push(FreshCoin {
                denom: DenomSerial::decode(input)?,
                h_coin_ev: HashCode::decode(input)?,
                link_sig: EddsaSignature::decode(input)?,
                ev_sig: BlindSignature::decode(input)?,
                r_pubs: if bool::decode(input)? {
                    Some((CsRPub::decode(input)?, CsRPub::decode(input)?))
                } else {
                    None
                },
            });
        }
        Ok(Self(coins))
    }
}

/// Lets enums with numbers be stored as one byte.
macro_rules! byte_columns {
    ($($name:ident),+) => {
        $(
            impl Column for $name {
                const TYPE: ColumnType = ColumnType::new(ColumnKind::U8);
                fn encode(&self, out: &mut Vec<u8>) {
                    out.push(*self as u8);
                }
                fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
                    let number = u8::decode(input)?;
                    Self::from_number(number)
                        .ok_or_else(|| DecodeError::invalid(stringify!($name), number.to_string()))
                }
            }
        )+
    };
}

byte_columns! {
    TransferKind, CollectedTerm, PurseMode, PurseState, KycOperation, KycState, LeaseJob, NonceKind
}

batzen_protocol::enumeration! {
    /// The purpose of a transfer.
    pub enum TransferKind {
        /// Deposits of a merchant; a wire_out row has the same wtid.
        Aggregate = 1,
        /// A closed reserve; a closings row has the same wtid.
        Closing = 2,
        /// Profit paid out; a drains row has the same wtid.
        Drain = 3,
    }
}

batzen_protocol::enumeration! {
    /// A term of the balance sheet to which rows that were removed still add.
    pub enum CollectedTerm {
        /// Incoming transfers.
        WiredIn = 1,
        /// Values of coins signed.
        Issued = 2,
        /// Withdraw fees.
        WithdrawFees = 3,
        /// Fees of full histories.
        HistoryFees = 4,
        /// Closing fees.
        ClosingFees = 5,
        /// Amounts by which closings were rounded down.
        ClosingRounding = 6,
        /// Amounts that closings decided to pay.
        ClosingsPaid = 7,
        /// Fees that reserves paid for prolonging them.
        AccountFees = 8,
        /// Fees of purses.
        PurseFees = 9,
        /// Transfers to merchants that the bank accepted.
        MerchantTransfers = 10,
        /// Transfers of closed reserves that the bank accepted.
        ClosingTransfers = 11,
        /// Transfers of profit that the bank accepted.
        DrainTransfers = 12,
        /// Amounts that coins have spent.
        Redeemed = 13,
        /// Melt fees.
        RefreshFees = 14,
        /// Melted value beyond the cost of the fresh coins.
        Surplus = 15,
        /// Deposit fees.
        DepositFees = 16,
        /// Refund fees.
        RefundFees = 17,
        /// Wire fees.
        WireFees = 18,
        /// Amounts by which transfers to merchants were rounded down.
        MerchantRounding = 19,
        /// Amounts that transfers to merchants were decided to pay.
        MerchantsPaid = 20,
        /// Contributions to paid purses that are there while their deposits have left.
        PursePayments = 21,
    }
}

batzen_protocol::enumeration! {
    /// The way in which a purse was created. The numbers are those that the reserve's signature covers.
    pub enum PurseMode {
        /// By its payer, with coins; a reserve takes it when it is full.
        Push = 1,
        /// By a reserve, within the reserve's quota.
        Quota = 2,
        /// By a reserve, which paid the purse fee.
        Fee = 3,
    }
}

batzen_protocol::enumeration! {
    /// The decision on a purse.
    pub enum PurseState {
        /// None yet.
        Open = 0,
        /// The reserve got the target.
        Paid = 1,
        /// It expired, and its coins were refunded.
        Expired = 2,
        /// Its owner deleted it, and its coins were refunded.
        Deleted = 3,
    }
}

batzen_protocol::enumeration! {
    /// An operation that KYC rules may limit.
    pub enum KycOperation {
        /// Withdrawals; the account is that which filled the reserve.
        Withdraw = 1,
        /// Transfers to a merchant's account.
        Deposit = 2,
        /// Payments between people; the account is the receiving reserve.
        Merge = 3,
        /// The balance of a wallet; the account is the wallet's key.
        Balance = 4,
        /// Closing a reserve to an account that did not fill it.
        Close = 5,
    }
}

batzen_protocol::enumeration! {
    /// The state of an identification.
    pub enum KycState {
        /// The user was sent to the provider.
        Started = 1 => "started",
        /// The user's entries wait for officers.
        Submitted = 2 => "submitted",
        /// The provider or the officers approved.
        Approved = 3 => "approved",
        /// The provider or an officer refused. The user may try again.
        Rejected = 4 => "rejected",
    }
}

/// One event that counts against a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KycEvent {
    /// When.
    pub time: Timestamp,
    /// Amount.
    pub amount: Money,
}

/// Events of an account, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct KycEvents(pub Vec<KycEvent>);

impl Column for KycEvents {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        let mut inner = Vec::with_capacity(self.0.len() * 20);
        for event in &self.0 {
            event.time.encode(&mut inner);
            event.amount.encode(&mut inner);
        }
        put_bytes(&inner, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let inner = take_bytes(input, "KYC events")?;
        let mut rest = inner.as_slice();
        let mut events = Vec::new();
        while !rest.is_empty() {
            events.push(KycEvent { time: Timestamp::decode(&mut rest)?, amount: Money::decode(&mut rest)? });
        }
        Ok(Self(events))
    }
}

/// A purse that an account may still be paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KycHold {
    /// The purse.
    pub purse_pub: super::PursePub,
    /// The amount that the account would get.
    pub amount: Money,
    /// When the purse expires.
    pub until: Timestamp,
}

/// Purses that an account may still be paid, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct KycHolds(pub Vec<KycHold>);

impl Column for KycHolds {
    const TYPE: ColumnType = ColumnType::new(ColumnKind::Bytes);
    fn encode(&self, out: &mut Vec<u8>) {
        let mut inner = Vec::with_capacity(self.0.len() * 52);
        for hold in &self.0 {
            hold.purse_pub.encode(&mut inner);
            hold.amount.encode(&mut inner);
            hold.until.encode(&mut inner);
        }
        put_bytes(&inner, out);
    }
    fn decode(input: &mut &[u8]) -> Result<Self, DecodeError> {
        let inner = take_bytes(input, "KYC holds")?;
        let mut rest = inner.as_slice();
        let mut holds = Vec::new();
        while !rest.is_empty() {
            holds.push(KycHold {
                purse_pub: super::PursePub::decode(&mut rest)?,
                amount: Money::decode(&mut rest)?,
                until: Timestamp::decode(&mut rest)?,
            });
        }
        Ok(Self(holds))
    }
}

batzen_protocol::enumeration! {
    /// The jobs that workers share by leases.
    pub enum LeaseJob {
        /// Importing the transfers that an account received: ranges of bank rows.
        Wirewatch = 1,
        /// Aggregating deposits: slots of receivers.
        Aggregator = 2,
        /// Having the bank execute transfers: slots of their identifiers.
        Transfer = 3,
        /// Closing reserves: slots of their keys.
        Closer = 4,
        /// Refunding expired purses: slots of their keys.
        Expire = 5,
    }
}

batzen_protocol::enumeration! {
    /// The kind of secret of a Clause Blind Schnorr lock.
    pub enum NonceKind {
        /// A planchet's nonce, used at withdrawals.
        Withdraw = 1,
        /// A refresh master secret, from which a melt's nonces derive.
        Melt = 2,
    }
}
