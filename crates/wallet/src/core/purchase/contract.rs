//! The merchant's contract: reads it, and checks that it is what the wallet asked for.

use batzen_crypto::EddsaSignature;
use batzen_protocol::signatures::{MerchantContract, SignedMessage};
use batzen_protocol::{Amount, Duration, Timestamp, canonical};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::super::CoreError;
use super::super::exchange::Exchange;
use super::{ContractTerms, Order, SignedContract, printable};
use crate::core::error::{Result, bad_input};

/// Largest contract, in bytes of JSON text. Contracts may contain images.
pub(crate) const MAX_CONTRACT_SIZE: usize = 1024 * 1024;
/// Most exchanges in a contract.
const MAX_EXCHANGES: usize = 1000;
/// Deepest nesting of a contract.
const MAX_DEPTH: usize = 32;

/// The member that says for how long the wallet should ask for refunds.
const AUTO_REFUND: &str = "auto_refund";

const WHAT: &str = "the shop's contract";

fn malformed(reason: impl Into<String>) -> CoreError {
    bad_input(WHAT, reason)
}

/// A mandatory member.
fn member<T: serde::de::DeserializeOwned>(contract: &Value, name: &str) -> Result<T> {
    optional(contract, name)?.ok_or_else(|| malformed(format!("{name} is missing")))
}

fn optional<T: serde::de::DeserializeOwned>(contract: &Value, name: &str) -> Result<Option<T>> {
    match contract.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => T::deserialize(value)
            .map(Some)
            .map_err(|error| malformed(format!("{name} is malformed: {error}"))),
    }
}

/// Checks the names of all members, and that only present members are forgettable. The hash checks the rest.
fn check_form(value: &Value, depth: usize) -> Result<()> {
    if depth > MAX_DEPTH {
        return Err(malformed("it is nested too deeply"));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_form(item, depth + 1)),
        Value::Object(object) => object.iter().try_for_each(|(name, member)| match name.as_str() {
            "$forgettable" => check_forgettable(object, member),
            "$forgotten" => Ok(()),
            _ if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') => {
                Err(malformed(format!("the name {name:?} of a member is not allowed")))
            }
            _ => check_form(member, depth + 1),
        }),
        _ => Ok(()),
    }
}

fn check_forgettable(object: &Map<String, Value>, salts: &Value) -> Result<()> {
    let salts = salts.as_object().ok_or_else(|| malformed("$forgettable is not an object"))?;
    let is_right = |(name, salt): (&String, &Value)| {
        !name.starts_with('$') && object.contains_key(name) && salt.is_string()
    };
    if salts.iter().all(is_right) { Ok(()) } else { Err(malformed("$forgettable is malformed")) }
}

impl ContractTerms {
    /// Reads a contract, and computes its hash.
    ///
    /// # Errors
    /// [`CoreError::BadInput`] if it is not well-formed, or contradicts itself.
    pub(crate) fn read(contract: Value) -> Result<Self> {
        #[derive(Deserialize)]
        struct Merchant {
            name: String,
        }
        check_form(&contract, 0)?;
        let h_contract_terms =
            canonical::contract_hash(&contract).map_err(|error| malformed(error.to_string()))?;
        let amount: Amount = member(&contract, "amount")?;
        let in_currency = |name: &str, sum: Amount| {
            if sum.currency == amount.currency {
                Ok(sum)
            } else {
                Err(malformed(format!("{name} is in another currency than the price")))
            }
        };
        let max_wire_fee: Option<Amount> = optional(&contract, "max_wire_fee")?;
        // The wallet decides nothing by these, but a contract without them is none.
        let _: Vec<Value> = member(&contract, "auditors")?;
        let merchant: Merchant = member(&contract, "merchant")?;
        let fulfillment_url: Option<String> = optional(&contract, "fulfillment_url")?;
        let amortization: i64 = optional(&contract, "wire_fee_amortization")?.unwrap_or(1);
        let _: Option<Duration> = optional(&contract, AUTO_REFUND)?;
        let terms = Self {
            order_id: member(&contract, "order_id")?,
            merchant_base_url: member(&contract, "merchant_base_url")?,
            merchant_pub: member(&contract, "merchant_pub")?,
            merchant_name: printable(&merchant.name),
            summary: printable(&member::<String>(&contract, "summary")?),
            amount,
            max_fee: in_currency("max_fee", member(&contract, "max_fee")?)?,
            max_wire_fee: match max_wire_fee {
                Some(fee) => in_currency("max_wire_fee", fee)?,
                None => Amount::zero(amount.currency),
            },
            wire_fee_amortization: u64::try_from(amortization).unwrap_or(0).max(1),
            wire_method: member(&contract, "wire_method")?,
            h_wire: member(&contract, "h_wire")?,
            timestamp: member(&contract, "timestamp")?,
            refund_deadline: member(&contract, "refund_deadline")?,
            pay_deadline: member(&contract, "pay_deadline")?,
            wire_transfer_deadline: member(&contract, "wire_transfer_deadline")?,
            exchanges: member(&contract, "exchanges")?,
            min_age: optional(&contract, "minimum_age")?.unwrap_or(0),
            fulfillment_url: fulfillment_url.map(|url| printable(&url)),
            nonce: member(&contract, "nonce")?,
            h_contract_terms,
            contract,
        };
        terms.check_deadlines()?;
        if terms.exchanges.len() > MAX_EXCHANGES {
            return Err(malformed(format!("it lists more than {MAX_EXCHANGES} exchanges")));
        }
        Ok(terms)
    }

    fn check_deadlines(&self) -> Result<()> {
        if self.wire_transfer_deadline.is_never() || self.refund_deadline > self.wire_transfer_deadline {
            return Err(malformed(
                "the deadline for the transfer to the shop must be a date, and not before the refund deadline",
            ));
        }
        if self.timestamp.is_never() {
            return Err(malformed("its timestamp is not a date"));
        }
        Ok(())
    }

    /// For how long the merchant may refund by itself after the payment.
    pub(crate) fn auto_refund(&self) -> Option<Duration> {
        optional(&self.contract, AUTO_REFUND).ok().flatten()
    }

    /// Returns whether the offer has expired.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.pay_deadline
    }

    /// Returns whether the merchant accepts the coins of an exchange. The master key decides; merchants may
    /// know the exchange under another URL.
    pub(crate) fn accepts(&self, exchange: &Exchange) -> bool {
        exchange.currency == self.amount.currency
            && self.exchanges.iter().any(|accepted| accepted.master_pub == exchange.master_pub)
    }

    /// Returns whether another contract sells the same: all that it says of the goods agrees. A shop may send every
    /// customer to one page of thanks, so the page alone does not tell.
    pub(super) fn sells_the_same(&self, other: &Self) -> bool {
        const GOODS: [&str; 7] =
            ["amount", "summary", "summary_i18n", "products", "extra", "minimum_age", "delivery_location"];
        GOODS.iter().all(|name| self.contract.get(name) == other.contract.get(name))
    }

    /// The web page that the purchase is for, if another purchase of the same page is the same purchase.
    pub(crate) fn page(&self) -> Option<&str> {
        let url = self.fulfillment_url.as_deref()?;
        (url.starts_with("https://") || url.starts_with("http://")).then_some(url)
    }
}

/// Checks a contract that the merchant sent for an order.
///
/// # Errors
/// [`CoreError::BadSignature`], or [`CoreError::BadInput`] if it is not the contract of this order and wallet.
pub(crate) fn check(order: &Order, contract: Value, merchant_sig: EddsaSignature) -> Result<SignedContract> {
    let terms = ContractTerms::read(contract)?;
    let message = MerchantContract { h_contract_terms: terms.h_contract_terms };
    if !message.verify(&terms.merchant_pub, &merchant_sig) {
        return Err(CoreError::BadSignature { what: "the shop's signature of its contract" });
    }
    if terms.merchant_base_url != order.merchant_base_url {
        return Err(malformed(format!(
            "it is a contract with {:?}, but the URI is about {:?}",
            printable(&terms.merchant_base_url),
            order.merchant_base_url
        )));
    }
    if terms.order_id != order.order_id {
        return Err(malformed("it is about another order"));
    }
    if terms.nonce != order.nonce_priv.public_key() {
        return Err(malformed("it is for another wallet"));
    }
    Ok(SignedContract { terms, merchant_sig })
}
