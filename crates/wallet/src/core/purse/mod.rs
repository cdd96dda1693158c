//! Payments between people, which go through purses at the exchange.
//!
//! To send money, a wallet pays coins into a new purse and shows a `taler://pay-push` URI. Whoever has the
//! URI can merge the purse into a reserve and withdraw. To request money, a wallet has its reserve create an
//! empty purse and shows a `taler://pay-pull` URI. Whoever has the URI can pay into it.
//!
//! [`payment`] is the payer's side of both, `income` the receiver's, and [`lookup`] reads what a URI is
//! about. The private contract key in the URI decrypts the contract, which the exchange keeps and cannot
//! read.

pub mod income;
pub mod lookup;
pub mod payment;
mod record;

use batzen_crypto::{EcdhePrivateKey, EddsaPrivateKey, EddsaPublicKey, HashCode, hash};
use batzen_protocol::api::exchange::{EncryptedContract, PurseConfirmation, PurseStatus};
use batzen_protocol::econtract::{PeerContract, contract_pub};
use batzen_protocol::signatures::{
    ExchangeConfirmPurseCreation, ExchangePurseStatus, SignedMessage, WalletPurseCreate, WalletPurseDelete,
    WalletPurseEcontract,
};
use batzen_protocol::{
    Amount, Base32Data, Currency, Duration, ErrorCode, Money, TalerUri, Timestamp, canonical,
};
use serde_json::{Value, json};

use super::exchange::Exchange;
use super::http::{Context, HttpRequest, HttpResponse};
use super::purchase::printable;
use super::{CoreError, Entropy};
use crate::core::error::{Result, bad_input, false_proof};

pub use record::*;

/// Longest summary of a payment, in bytes. Exchanges accept contracts of 4 KiB, encrypted.
pub(crate) const MAX_SUMMARY_SIZE: usize = 1000;

/// Mode of a merge: a paid purse is merged into a reserve.
const MERGE_FULL_PURSE: u32 = 1;
/// Mode of a merge: a reserve creates the purse and pays the purse fee.
const CREATE_WITH_FEE: u32 = 3;

impl PurseTerms {
    /// New terms.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] for an amount of zero, a long summary, or an expiration that is past or never.
    pub(crate) fn new(
        amount: Amount,
        summary: &str,
        expiration: Timestamp,
        min_age: u32,
        now: Timestamp,
    ) -> Result<Self> {
        if amount.is_zero() {
            return Err(bad_input("amount", "it must be more than zero"));
        }
        if summary.len() > MAX_SUMMARY_SIZE {
            return Err(bad_input("summary", format!("it must not be longer than {MAX_SUMMARY_SIZE} bytes")));
        }
        if expiration <= now || expiration.is_never() {
            return Err(bad_input("expiration", "it must be a time in the future"));
        }
        let mut contract = json!({ "amount": amount, "summary": summary, "purse_expiration": expiration });
        if min_age > 0 {
            contract["minimum_age"] = min_age.into();
        }
        Self::read(contract, amount.currency)
    }

    /// The terms in a contract. Wallets and the exchange's own client name the expiration differently.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if a member is missing or malformed.
    pub(crate) fn read(contract: Value, currency: Currency) -> Result<Self> {
        let malformed = |reason: &str| bad_input("contract of the payment", reason);
        let text = |name: &str| contract.get(name).and_then(Value::as_str);
        let amount: Amount =
            text("amount").and_then(|text| text.parse().ok()).ok_or_else(|| malformed("it has no amount"))?;
        let expiration = contract.get("purse_expiration").or_else(|| contract.get("pay_deadline"));
        let expiration: Timestamp = expiration
            .and_then(|time| serde_json::from_value(time.clone()).ok())
            .ok_or_else(|| malformed("it has no expiration"))?;
        let min_age = match contract.get("minimum_age") {
            None => 0,
            Some(age) => age
                .as_u64()
                .and_then(|age| u32::try_from(age).ok())
                .ok_or_else(|| malformed("its minimum age is malformed"))?,
        };
        let h_contract_terms = canonical::contract_hash(&contract)
            .map_err(|error| malformed(&format!("it has no canonical form: {error}")))?;
        Ok(Self {
            amount: amount.money_in(currency)?,
            summary: printable(text("summary").unwrap_or_default()),
            expiration,
            min_age,
            h_contract_terms,
            contract,
        })
    }

    fn create_message(&self, exchange: &Exchange, merge_pub: EddsaPublicKey) -> WalletPurseCreate {
        WalletPurseCreate {
            purse_expiration: self.expiration,
            purse_amount: exchange.amount(self.amount),
            h_contract_terms: self.h_contract_terms,
            merge_pub,
            min_age: self.min_age,
        }
    }
}

/// The keys of a new purse.
struct NewPurse {
    purse_priv: EddsaPrivateKey,
    merge_priv: EddsaPrivateKey,
    contract_priv: EcdhePrivateKey,
}

impl NewPurse {
    fn draw(entropy: &mut dyn Entropy) -> Self {
        Self {
            purse_priv: EddsaPrivateKey::from_bytes(entropy.array()),
            merge_priv: EddsaPrivateKey::from_bytes(entropy.array()),
            contract_priv: EcdhePrivateKey::from_bytes(entropy.array()),
        }
    }

    /// Encrypts the contract. A repeated request must contain the same bytes, so they are stored.
    fn encrypt(&self, contract: &PeerContract, entropy: &mut dyn Entropy) -> Result<Base32Data> {
        let nonce = entropy.array();
        let encrypted =
            contract.encrypt_with_nonce(&nonce, &self.contract_priv, &self.purse_priv.public_key());
        Ok(encrypted.map_err(|error| bad_input("contract of the payment", error.to_string()))?.into())
    }
}

/// The encrypted contract as it is uploaded.
fn upload(
    purse_priv: &EddsaPrivateKey,
    contract_priv: &EcdhePrivateKey,
    econtract: &Base32Data,
) -> EncryptedContract {
    let contract_pub = contract_pub(contract_priv);
    let message = WalletPurseEcontract { h_econtract: hash::sha512(&econtract.0), contract_pub };
    EncryptedContract { econtract: econtract.clone(), econtract_sig: message.sign(purse_priv), contract_pub }
}

/// The URI to give to the other person.
#[must_use]
pub fn uri(direction: Direction, base_url: &str, contract_priv: &EcdhePrivateKey) -> String {
    let exchange_url = base_url.to_owned();
    let contract_priv = contract_priv.to_base32().as_str().to_owned();
    match direction {
        Direction::Push => TalerUri::PayPush { exchange_url, contract_priv },
        Direction::Pull => TalerUri::PayPull { exchange_url, contract_priv },
    }
    .to_string()
}

/// The event that a request for a purse's status waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitFor {
    Merge,
    Deposit,
}

fn status_request(
    context: Context,
    base_url: &str,
    purse_pub: &EddsaPublicKey,
    target: WaitFor,
    poll_ms: u64,
) -> HttpRequest {
    let target = match target {
        WaitFor::Merge => "merge",
        WaitFor::Deposit => "deposit",
    };
    let url = format!("{base_url}purses/{purse_pub}/{target}");
    HttpRequest::long_poll(context, url, "timeout_ms", poll_ms)
}

fn delete_request(context: Context, base_url: &str, purse_priv: &EddsaPrivateKey) -> HttpRequest {
    let url = format!("{base_url}purses/{}", purse_priv.public_key());
    HttpRequest::delete(context, url, WalletPurseDelete {}.sign(purse_priv))
}

/// The state of a purse by the exchange's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    /// It exists, and is neither deleted nor expired.
    Current(SignedStatus),
    /// It expired. It may have been paid before.
    Expired,
    /// Its owner deleted it, and its coins got their value back.
    Deleted,
    /// The exchange does not know it.
    Unknown,
}

/// Reads the status of a purse, and verifies the exchange's signature.
fn read_status(exchange: &Exchange, response: &HttpResponse, now: Timestamp) -> Result<Seen> {
    const WHAT: &str = "asking about a purse";
    match (response.status, response.code()) {
        (200, _) => {}
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_EXPIRED) => return Ok(Seen::Expired),
        (410, ErrorCode::EXCHANGE_GENERIC_PURSE_DELETED) => return Ok(Seen::Deleted),
        (404, ErrorCode::EXCHANGE_GENERIC_PURSE_UNKNOWN) => return Ok(Seen::Unknown),
        _ => return Err(response.refusal(WHAT)),
    }
    let answer: PurseStatus = response.json(WHAT)?;
    exchange.require_signing_key(&answer.exchange_pub, now)?;
    let status = SignedStatus {
        balance: answer.balance.money_in(exchange.currency)?,
        merge_timestamp: answer.merge_timestamp.unwrap_or(Timestamp::ZERO),
        deposit_timestamp: answer.deposit_timestamp.unwrap_or(Timestamp::ZERO),
        exchange_pub: answer.exchange_pub,
        exchange_sig: answer.exchange_sig,
    };
    let message = ExchangePurseStatus {
        merge_timestamp: status.merge_timestamp,
        deposit_timestamp: status.deposit_timestamp,
        balance: answer.balance,
    };
    if !message.verify(&status.exchange_pub, &status.exchange_sig) {
        return Err(CoreError::BadSignature { what: "the exchange's statement about a purse" });
    }
    Ok(Seen::Current(status))
}

/// Verifies the exchange's confirmation that a purse with these terms exists and contains `total`.
fn verify_confirmation(
    exchange: &Exchange,
    terms: &PurseTerms,
    purse_pub: EddsaPublicKey,
    answer: &PurseConfirmation,
    now: Timestamp,
) -> Result<PurseProof> {
    exchange.require_signing_key(&answer.exchange_pub, now)?;
    let message = ExchangeConfirmPurseCreation {
        exchange_time: answer.exchange_timestamp,
        purse_expiration: terms.expiration,
        amount_without_fee: exchange.amount(terms.amount),
        total_deposited: answer.total_deposited,
        purse_pub,
        h_contract_terms: terms.h_contract_terms,
    };
    if !message.verify(&answer.exchange_pub, &answer.exchange_sig) {
        return Err(CoreError::BadSignature { what: "the exchange's confirmation of a purse" });
    }
    Ok(PurseProof {
        total: answer.total_deposited.money_in(exchange.currency)?,
        exchange_timestamp: answer.exchange_timestamp,
        exchange_pub: answer.exchange_pub,
        exchange_sig: answer.exchange_sig,
    })
}

/// Tolerated difference between the exchange's clock and ours.
const CLOCK_TOLERANCE: Duration = Duration::from_days(1);

/// Checks by our clock that a purse can have expired. The exchange does not sign that it has.
///
/// Returns whether it has. If not, the exchange's clock may be ahead of ours, and the wallet asks again later.
fn check_expired(terms: &PurseTerms, now: Timestamp) -> Result<bool> {
    if now.saturating_add(CLOCK_TOLERANCE) < terms.expiration {
        let reason = "it says that the purse has expired, long before its time";
        return Err(false_proof("the exchange's statement about a purse", reason));
    }
    Ok(now >= terms.expiration)
}

/// The error for an exchange that forgets a purse whose creation it has confirmed.
fn forgotten() -> CoreError {
    let reason = "it says that there is no such purse, but it has confirmed its creation";
    false_proof("the exchange's statement about a purse", reason)
}

/// The statements of an exchange that prove a payment between people.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PurseReceipt {
    /// Number of the operation.
    pub(crate) operation: u64,
    /// Base URL of the exchange.
    pub(crate) exchange: String,
    /// The purse.
    pub purse_pub: EddsaPublicKey,
    pub(crate) contract: Value,
    /// Its hash.
    pub h_contract_terms: HashCode,
    /// The exchange's confirmation that the purse exists, and what was paid into it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confirmation: Option<PurseProof>,
    /// The exchange's confirmation that the purse was merged into the receiver's reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<PurseProof>,
    /// The receiver's reserve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reserve_pub: Option<EddsaPublicKey>,
    /// The exchange's last statement about the purse.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<SignedStatus>,
}

/// The receipt of a payment between people.
///
/// # Errors
/// [`CoreError::BadInput`] if the operation is no such payment.
pub(crate) fn receipt(state: &super::WalletState, id: u64) -> Result<PurseReceipt> {
    use super::state::OpKind;
    let operation = state.operation(id)?;
    let (purse_pub, terms, confirmation, merge, reserve_pub, status) = match &operation.kind {
        OpKind::PursePayment(record) => {
            (record.purse_pub, &record.terms, record.confirmation, None, None, record.status)
        }
        OpKind::PurseIncome(record) => (
            record.purse_pub,
            &record.terms,
            record.confirmation,
            record.merge,
            Some(record.reserve_priv.public_key()),
            record.status,
        ),
        _ => return Err(bad_input("operation", format!("{id} is no payment between people"))),
    };
    Ok(PurseReceipt {
        operation: id,
        exchange: operation.exchange.clone(),
        purse_pub,
        contract: terms.contract.clone(),
        h_contract_terms: terms.h_contract_terms,
        confirmation,
        merge,
        reserve_pub,
        status,
    })
}

/// Returns whether the purse holds the maximum by these terms: the sum that the receiver gets.
#[must_use]
pub(crate) fn is_full(terms: &PurseTerms, balance: Money) -> bool {
    balance >= terms.amount
}
