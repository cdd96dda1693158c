//! `GET /keys` and `GET /wire`: the exchange's offers, signed by its master key.

use std::collections::BTreeMap;

use batzen_crypto::{
    CsPublicKey, CsVerifyingKey, DenomKey, DenomPublicKey, EddsaPublicKey, EddsaSignature, HashCode,
    RsaPublicKey,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::denominations::DenominationTerms;
use crate::signatures::{MasterGlobalFees, MasterSigningKeyValidity, MasterWireDetails, MasterWireFees};
use crate::{Amount, Base32Data, Duration, Timestamp, hash_text, payto};

/// Answer to `GET /keys`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeysResponse {
    /// Protocol version, libtool style (`current:revision:age`).
    pub version: String,
    /// Base URL of the exchange, ends with a slash.
    pub base_url: String,
    /// The one currency of the exchange.
    pub currency: String,
    /// Kind of currency: `fiat`, `crypto`, `regional` …
    pub asset_type: String,
    /// The offline key that signs everything below.
    pub master_public_key: EddsaPublicKey,
    /// Time that an unused reserve stays open.
    pub reserve_closing_delay: Duration,
    /// Online signing keys.
    pub signkeys: Vec<SignKey>,
    /// Revoked denominations. Always sent; readers treat its absence as empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recoup: Option<Vec<RecoupDenomination>>,
    /// All denominations that are not revoked, newest first.
    pub denoms: Vec<Denomination>,
    /// The same, grouped by terms.
    pub denominations: Vec<DenominationGroup>,
    /// Auditors and their signatures.
    pub auditors: Vec<AuditorKeys>,
    /// Fees and limits per period.
    pub global_fees: Vec<GlobalFee>,
    /// Oldest start in the listing; a later request may name it to get only newer denominations.
    pub list_issue_date: Timestamp,
    /// Signing key of the two signatures.
    pub eddsa_pub: EddsaPublicKey,
    /// `EXCHANGE_KEY_SET` over `denoms`.
    pub eddsa_sig: EddsaSignature,
    /// `EXCHANGE_KEY_SET` over `denominations`.
    pub denominations_sig: EddsaSignature,
    /// Balances above which wallets must identify their owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wallet_balance_limit_without_kyc: Option<Vec<Amount>>,
    /// Enabled extensions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions: Option<BTreeMap<String, ExtensionManifest>>,
    /// `MASTER_EXTENSION` over `extensions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extensions_sig: Option<EddsaSignature>,
}

/// An online signing key of the exchange, as the master key has signed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignKey {
    /// The key.
    pub key: EddsaPublicKey,
    /// Start of the period in which it signs.
    pub stamp_start: Timestamp,
    /// End of the period in which it signs.
    pub stamp_expire: Timestamp,
    /// The time until which its signatures are legally valid.
    pub stamp_end: Timestamp,
    /// `MASTER_SIGNING_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

/// A revoked denomination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoupDenomination {
    /// Its hash.
    pub h_denom_pub: HashCode,
}

/// A denomination key with its terms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Denomination {
    /// The key.
    pub denom_pub: DenomPublicKey,
    /// Value of a coin.
    pub value: Amount,
    /// Fee for withdrawing a coin.
    pub fee_withdraw: Amount,
    /// Fee for depositing a coin.
    pub fee_deposit: Amount,
    /// Fee for melting a coin.
    pub fee_refresh: Amount,
    /// Fee for refunding a coin.
    pub fee_refund: Amount,
    /// Start of the period in which coins are issued.
    pub stamp_start: Timestamp,
    /// End of the period in which coins are issued.
    pub stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub stamp_expire_legal: Timestamp,
    /// `MASTER_DENOMINATION_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

/// Denominations of the same cipher, value, fees and age groups.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DenominationGroup {
    /// Cipher, and whether the coins are age-restricted.
    pub cipher: GroupCipher,
    /// Value of a coin.
    pub value: Amount,
    /// Fee for withdrawing a coin.
    pub fee_withdraw: Amount,
    /// Fee for depositing a coin.
    pub fee_deposit: Amount,
    /// Fee for melting a coin.
    pub fee_refresh: Amount,
    /// Fee for refunding a coin.
    pub fee_refund: Amount,
    /// Age groups; only in age-restricted groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_mask: Option<u32>,
    /// XOR of the hashes of all members.
    pub hash: HashCode,
    /// The keys, newest first.
    pub denoms: Vec<GroupMember>,
}

/// Cipher of a group of denominations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupCipher {
    /// Blind RSA.
    #[serde(rename = "RSA")]
    Rsa,
    /// Clause Blind Schnorr.
    #[serde(rename = "CS")]
    Cs,
    /// Blind RSA, age-restricted.
    #[serde(rename = "RSA+age_restricted")]
    RsaAgeRestricted,
    /// Clause Blind Schnorr, age-restricted.
    #[serde(rename = "CS+age_restricted")]
    CsAgeRestricted,
}

/// One key of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupMember {
    /// Encoded RSA public key, in RSA groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rsa_pub: Option<Base32Data>,
    /// Public key, in CS groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cs_pub: Option<CsPublicKey>,
    /// Start of the period in which coins are issued.
    pub stamp_start: Timestamp,
    /// End of the period in which coins are issued.
    pub stamp_expire_withdraw: Timestamp,
    /// End of the period in which coins can be spent.
    pub stamp_expire_deposit: Timestamp,
    /// End of the period in which records are kept.
    pub stamp_expire_legal: Timestamp,
    /// `MASTER_DENOMINATION_KEY_VALIDITY`.
    pub master_sig: EddsaSignature,
}

/// An auditor of the exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorKeys {
    /// Its key.
    pub auditor_pub: EddsaPublicKey,
    /// Its base URL.
    pub auditor_url: String,
    /// Its name.
    pub auditor_name: String,
    /// The denominations that it audits.
    pub denomination_keys: Vec<AuditorDenomination>,
}

/// An auditor's approval of a denomination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditorDenomination {
    /// The denomination.
    pub denom_pub_h: HashCode,
    /// `AUDITOR_EXCHANGE_KEYS`.
    pub auditor_sig: EddsaSignature,
}

/// Fees and limits of a period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GlobalFee {
    /// Start of the period.
    pub start_date: Timestamp,
    /// End of the period.
    pub end_date: Timestamp,
    /// Fee for a complete reserve history.
    pub history_fee: Amount,
    /// Yearly fee for keeping a reserve open.
    pub account_fee: Amount,
    /// Fee for creating a purse.
    pub purse_fee: Amount,
    /// Length of the histories.
    pub history_expiration: Duration,
    /// Time that an expired purse stays readable.
    pub purse_timeout: Duration,
    /// Number of purses that an open reserve may have.
    pub purse_account_limit: u32,
    /// `MASTER_GLOBAL_FEES`.
    pub master_sig: EddsaSignature,
}

/// An enabled extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtensionManifest {
    /// Whether clients that do not know it must not use the exchange.
    pub(crate) critical: bool,
    pub(crate) version: String,
    /// Its settings.
    pub config: Value,
}

/// Answer to `GET /wire`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireResponse {
    /// Bank accounts for money to the exchange.
    pub accounts: Vec<WireAccount>,
    /// Fees per wire method.
    pub fees: BTreeMap<String, Vec<WireFee>>,
    /// The key that signed all this.
    pub master_public_key: EddsaPublicKey,
}

/// A bank account of the exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireAccount {
    /// The account.
    pub payto_uri: String,
    /// `MASTER_WIRE_DETAILS`.
    pub master_sig: EddsaSignature,
}

/// Fees of a wire method for a period.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireFee {
    /// Fee for a transfer to a merchant.
    pub wire_fee: Amount,
    /// Fee for closing a reserve.
    pub closing_fee: Amount,
    /// Start of the period.
    pub start_date: Timestamp,
    /// End of the period.
    pub end_date: Timestamp,
    /// `MASTER_WIRE_FEES`.
    pub sig: EddsaSignature,
}

impl Denomination {
    /// Value, fees and times.
    pub fn terms(&self) -> DenominationTerms {
        DenominationTerms {
            value: self.value,
            fee_withdraw: self.fee_withdraw,
            fee_deposit: self.fee_deposit,
            fee_refresh: self.fee_refresh,
            fee_refund: self.fee_refund,
            stamp_start: self.stamp_start,
            stamp_expire_withdraw: self.stamp_expire_withdraw,
            stamp_expire_deposit: self.stamp_expire_deposit,
            stamp_expire_legal: self.stamp_expire_legal,
        }
    }
}

impl DenominationGroup {
    /// Value, fees and times of one of its members.
    pub fn terms(&self, member: &GroupMember) -> DenominationTerms {
        DenominationTerms {
            value: self.value,
            fee_withdraw: self.fee_withdraw,
            fee_deposit: self.fee_deposit,
            fee_refresh: self.fee_refresh,
            fee_refund: self.fee_refund,
            stamp_start: member.stamp_start,
            stamp_expire_withdraw: member.stamp_expire_withdraw,
            stamp_expire_deposit: member.stamp_expire_deposit,
            stamp_expire_legal: member.stamp_expire_legal,
        }
    }

    /// The key of one of its members. `None` if the member has no valid key of the group's cipher, or the group has
    /// no age mask although its coins have ages.
    pub fn key(&self, member: &GroupMember) -> Option<DenomPublicKey> {
        let age_mask = match self.cipher {
            GroupCipher::RsaAgeRestricted | GroupCipher::CsAgeRestricted => self.age_mask?,
            GroupCipher::Rsa | GroupCipher::Cs => 0,
        };
        let key = match self.cipher {
            GroupCipher::Rsa | GroupCipher::RsaAgeRestricted => {
                DenomKey::Rsa(RsaPublicKey::decode(member.rsa_pub.as_ref()?.as_ref()).ok()?)
            }
            GroupCipher::Cs | GroupCipher::CsAgeRestricted => {
                DenomKey::Cs(CsVerifyingKey::new(member.cs_pub.as_ref()?).ok()?)
            }
        };
        Some(DenomPublicKey { age_mask, key })
    }
}

impl SignKey {
    /// The message signed by the master key.
    pub fn validity(&self) -> MasterSigningKeyValidity {
        MasterSigningKeyValidity {
            start: self.stamp_start,
            expire: self.stamp_expire,
            end: self.stamp_end,
            signkey_pub: self.key,
        }
    }
}

impl GlobalFee {
    /// The message signed by the master key.
    pub fn message(&self) -> MasterGlobalFees {
        MasterGlobalFees {
            start_date: self.start_date,
            end_date: self.end_date,
            purse_timeout: self.purse_timeout,
            history_expiration: self.history_expiration,
            history_fee: self.history_fee,
            account_fee: self.account_fee,
            purse_fee: self.purse_fee,
            purse_account_limit: self.purse_account_limit,
        }
    }
}

impl WireAccount {
    /// The message signed by the master key.
    pub fn message(&self) -> MasterWireDetails {
        MasterWireDetails { h_wire_details: payto::h_payto(&self.payto_uri) }
    }
}

impl WireFee {
    /// The message signed by the master key, for a wire method.
    pub fn message(&self, wire_method: &str) -> MasterWireFees {
        MasterWireFees {
            h_wire_method: hash_text(wire_method),
            start_date: self.start_date,
            end_date: self.end_date,
            wire_fee: self.wire_fee,
            closing_fee: self.closing_fee,
        }
    }
}
